#compdef urbd drbdadm drbdsetup drbdmeta
# Completion for urbd and the names of DRBD's tools: the program itself says what may follow.

local found option
found=$("${words[1]}" --completion-of "${(@)words[1,CURRENT]}" 2>/dev/null </dev/null)
if [[ $found == :files ]]; then
    option="${words[CURRENT]%%=*}="
    [[ ${words[CURRENT]} != --*=* ]] || compset -P "$option"
    _files
    return
fi
local -a candidates valued
candidates=(${(f)found})
valued=(${(M)candidates:#*=})
candidates=(${candidates:#*=})
compadd -- "${candidates[@]}"
compadd -S '' -- "${valued[@]}"
