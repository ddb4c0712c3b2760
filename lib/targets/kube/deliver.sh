# SPDX-License-Identifier: Apache-2.0
# A layer of the code in the init container that waits for it (code.sh). MODE LAYER BYTES:
#	have	print "done", or how much of the layer of BYTES bytes has come
#	take	so many more of them, from stdin
f=/dlrun/code/.dlrun-$2
case $1 in
have)
	# The one that takes from a connection that was cut would add to what comes now.
	if read -r old 2>/dev/null <"$f.pid"; then
		while read -r name 2>/dev/null <"/proc/$old/comm" && [ "$name" = head ] && kill -9 "$old" 2>/dev/null; do
			sleep 0.05 2>/dev/null || sleep 1
		done
		rm -f "$f.pid"
	fi
	if [ -e /dlrun/code/.dlrun-done ] || [ -e "$f" ]; then
		echo done
		exit
	fi
	size=0
	[ ! -e "$f.part" ] || size=$(($(wc -c <"$f.part"))) || exit
	if [ "$size" -gt "$3" ]; then
		rm -f "$f.part"
		size=0
	elif [ "$size" -eq "$3" ]; then
		mv "$f.part" "$f" && size='done'
	fi
	echo "$size"
	;;
take)
	echo $$ >"$f.pid" || exit
	# A node ends stdin when nobody has stdout open any more.
	exec 3>&1
	exec head -c "$3" >>"$f.part"
	;;
esac
