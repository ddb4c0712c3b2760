# SPDX-License-Identifier: Apache-2.0
# Behind everything, so that half a file does nothing.

d_runner=$0
d_root=${1-}
d_mark=${2--}
if [ "$d_mark" != - ]; then
	serve
else
	d_local=$3
	part=job_$4
	shift 4
	node_of
	"$part" "$@"
fi
