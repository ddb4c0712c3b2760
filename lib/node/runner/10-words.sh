# SPDX-License-Identifier: Apache-2.0
# Values as words, and answers.

# $coded: $1 as one word. Most values are words already; most others have blanks only.
word_of() {
	case $1 in
	'') coded='\0'; return ;;
	*[!A-Za-z0-9._/:=,@%+~-]*) ;;
	*) coded=$1; return ;;
	esac
	if [ "${#1}" -gt 400 ]; then
		coded=$(printf %s "$1" | words_awk)
		return
	fi
	coded= word_rest=$1
	while :; do
		word_part=${word_rest%%[!A-Za-z0-9._/:=,@%+~-]*}
		coded=$coded$word_part
		word_rest=${word_rest#"$word_part"}
		[ "$word_rest" ] || return 0
		word_tail=${word_rest#?}
		word_char=${word_rest%"$word_tail"}
		word_rest=$word_tail
		case $word_char in
		' ') coded=$coded'\0040' ;;
		\') coded=$coded'\0047' ;;
		'(') coded=$coded'\0050' ;;
		')') coded=$coded'\0051' ;;
		';') coded=$coded'\0073' ;;
		"$nl") coded=$coded'\0012' ;;
		*) coded=$coded'\0'$(printf '%03o' "'$word_char") ;;
		esac
	done
}

# All of stdin as one word, without its last newline.
words_awk() {
	awk 'BEGIN {
		for (i = 1; i < 256; i++) code[sprintf("%c", i)] = sprintf("\\0%03o", i)
		safe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/:=,@%+~-"
		for (i = 1; i <= length(safe); i++) code[substr(safe, i, 1)] = substr(safe, i, 1)
	}
	{
		if (NR > 1) printf "%s", "\\0012"
		n = length($0)
		for (i = 1; i <= n; i++) printf "%s", code[substr($0, i, 1)]
	}'
}

# $plain: what the word $1 stands for, with newlines at its end.
unword_of() {
	case $1 in
	'\0') plain= ;;
	*\\*)
		plain=$(printf '%b.' "$1")
		plain=${plain%.}
		;;
	*) plain=$1 ;;
	esac
}

# The same, printed.
word() {
	word_of "$1"
	printf %s "$coded"
}

# Where the last line of an answer goes: 2 where stdout is raw (answer_raw).
d_answer=1
answer_raw() {
	d_answer=2
}

answer_done() {
	printf '%s done\n' "$d_mark" >&"$d_answer"
	exit 0
}

# CLASS of protocol.h, a sentence. Does not come back; in a ( ) only that ends.
answer_fail() {
	word_of "$2"
	printf '%s fail %s %s\n' "$d_mark" "$1" "$coded" >&"$d_answer"
	exit 0
}
