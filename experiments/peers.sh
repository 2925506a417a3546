set -eu
cd /work/main/.gpu; rm -rf pw; mkdir pw
../.venv/bin/python -m pip --version
PATH=/work/main/.venv/bin:$PATH ../../shared/tools/peer-wheels pw
mkdir -p pw/site pw/p2 pw/lig
cat pw/a/part0 pw/b/part1 > "pw/$(cat pw/a/name)"
for w in pw/a/nvidia_cutlass*.whl pw/nvidia*.whl pw/a/flash*.whl pw/a/apache*.whl pw/a/torch_c*.whl; do unzip -qo $w -d pw/site; done
unzip -qo pw/a/quack*.whl -d pw/p2; unzip -qo pw/a/liger*.whl -d pw/lig
du -sm pw/site pw/p2 pw/lig
find pw/site -size +4M -exec ls -la {} \;
