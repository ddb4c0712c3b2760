# fish completion for dlrun: `dlrun __complete` knows the commands, options and runs.
function __dlrun_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete $words[2..] "$current" 2>/dev/null)
        switch $line
            case :file
                __fish_complete_path "$current"
            case :dir
                __fish_complete_directories "$current" ''
            case :command
                complete -C "$current"
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c dlrun -f -a '(__dlrun_complete)'
