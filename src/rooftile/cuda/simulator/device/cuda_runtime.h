// Nothing: what a kernel needs of it is in the prelude, which is always included.
