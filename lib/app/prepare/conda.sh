# SPDX-License-Identifier: Apache-2.0
# The environment of conda that the file $lock of this directory names, as .venv: by a tool that is there, else by
# py-rattler, which pip gets. Caches of the tools are no part of a layer (bake.sh).
conda_has() { command -v "$1" >/dev/null 2>&1; }
conda_fail() {
	printf 'dlrun: %s: %s\n' "$lock" "$1" >&2
	exit 1
}
PATH=$PATH:/opt/conda/bin:$HOME/miniforge3/bin:$HOME/miniconda3/bin:$HOME/.pixi/bin:$HOME/.local/bin
conda_at=$PWD/.venv
# In a pod always the same path, since the tools write it down.
if [ "${KUBERNETES_SERVICE_HOST-}" ]; then
	conda_dir=${TMPDIR:-/tmp}/dlrun-conda
	mkdir -p "$conda_dir" || exit
	export "CONDA_PKGS_DIRS=${CONDA_PKGS_DIRS-$conda_dir/pkgs}" CONDA_REGISTER_ENVS=false
	case $HOME in /dlrun/home*) HOME=$conda_dir ;; esac
else
	conda_dir=$(mktemp -d) || exit
fi
trap 'rm -rf "$conda_dir"' EXIT
# mamba 1 knows no lock files, and where that is, conda is.
conda_tool=
for conda_name in pixi micromamba mamba conda-lock conda; do
	conda_has $conda_name || continue
	case $lock:$conda_name in
	pixi.lock:pixi | *-lock.y*ml:conda-lock | environment.*:conda | *.y*ml:micromamba) ;;
	*.y*ml:mamba) case $(mamba --version 2>/dev/null) in 2.*) ;; *) continue ;; esac ;;
	*) continue ;;
	esac
	conda_tool=$conda_name
	break
done
case $conda_tool in
pixi) pixi install --frozen && ln -s .pixi/envs/default .venv ;;
micromamba | mamba) "$conda_tool" create -y -q -p "$conda_at" -f "$lock" ;;
conda-lock) conda-lock install -p "$conda_at" "$lock" ;;
conda) conda env create -q -p "$conda_at" -f "$lock" ;;
*)
	conda_has python3 && python3 -m venv "$conda_dir/tool" ||
		conda_fail 'neither pixi, micromamba, mamba or conda is there nor a python3 that could get one (venv): take a base image with one of them'
	"$conda_dir/tool/bin/python" -m pip install -q --no-compile --disable-pip-version-check 'pip>=22.3' 'py-rattler==0.28.*' pyyaml ||
		conda_fail 'pip cannot get py-rattler: take a base image with pixi, micromamba, mamba or conda'
	"$conda_dir/tool/bin/python" -c "$conda_program" "$lock" "$conda_at" "$conda_dir/pip.txt"
	;;
esac
