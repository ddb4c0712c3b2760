#compdef dlrun
# zsh completion for dlrun: `dlrun __complete` knows the commands, options and runs.
_dlrun() {
    local line text
    local -a candidates
    for line in "${(@f)$("${(Q)words[1]}" __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        case $line in
        :file) _files && return ;;
        :dir) _files -/ && return ;;
        :command) _command_names -e; _files; return ;;
        ?*)
            text=${line#*$'\t'}
            candidates+=("${${line%%$'\t'*}//:/\\:}${text:+:$text}")
            ;;
        esac
    done
    _describe dlrun candidates
}
if [[ $funcstack[1] == _dlrun ]]; then
    _dlrun "$@"
else
    compdef _dlrun dlrun
fi
