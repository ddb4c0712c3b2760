# SPDX-License-Identifier: Apache-2.0
# Behind 73-store.sh where there is no runner.
export LC_ALL=C
store "$@"
