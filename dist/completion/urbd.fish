# Completion for urbd and the names of DRBD's tools: the program itself says what may follow.

function __urbd_candidates
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($words[1] --completion-of $words "$current" 2>/dev/null </dev/null)
    if test "$found" = :files
        __fish_complete_path (string replace -r '^--[^=]*=' '' -- $current)
    else
        printf '%s\n' $found
    end
end

for program in urbd drbdadm drbdsetup drbdmeta
    complete -c $program -f -a '(__urbd_candidates)'
end
