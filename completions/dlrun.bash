# bash completion for dlrun: `dlrun __complete` knows the commands, options and runs.
_dlrun() {
    local line=${COMP_LINE:0:COMP_POINT} words=() word='' current='' head=''
    # Not COMP_WORDS: bash cuts that at '=', ':' and '@', too.
    read -ra words <<<"$line"
    [[ $line == *[[:blank:]] ]] && words+=('')
    current=${words[${#words[@]} - 1]}
    head=${current%"${current##*["$COMP_WORDBREAKS"]}"} # what stays when bash replaces the word
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        case $word in
        :file) compopt -o default ;;
        :dir) compopt -o dirnames ;;
        :command) compopt -o default && while read -r word; do
            _dlrun_add "$word"
        done < <(compgen -c -- "$current") ;;
        *) _dlrun_add "${word#"$head"}" ;;
        esac
    done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
}
# A name comes from a file or a node, and bash puts it into the line as it is.
_dlrun_add() {
    local word=$1
    [[ $word != *[^[:alnum:]._/:=,@%+~-]* ]] || printf -v word %q "$word"
    COMPREPLY+=("$word")
}
complete -F _dlrun dlrun
