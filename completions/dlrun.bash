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
            COMPREPLY+=("$word")
        done < <(compgen -c -- "$current") ;;
        *) COMPREPLY+=("${word#"$head"}") ;;
        esac
    done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _dlrun dlrun
