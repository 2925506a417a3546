cd /work/main/.gpu
tar -C pw/lig -cf - . | xz -9 > liger.tar.xz
tar -C pw/p2 -cf - . | xz -9 > peers2.xz
tar -C pw/site -cf - . | xz -T2 -6 > site.xz
split -n 2 -d -a 1 site.xz sp; rm site.xz; ls -la sp? peers2.xz liger.tar.xz
