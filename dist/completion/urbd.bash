# Completion for urbd and the names of DRBD's tools: the program itself says what may follow.

_urbd() {
    local line=${COMP_LINE:0:COMP_POINT} current found
    local -a words
    read -ra words <<<"$line"
    [[ -n $line && $line != *[[:space:]] ]] || words+=("")
    current=${words[${#words[@]} - 1]}
    local IFS=$'\n'
    found=$("${words[0]}" --completion-of "${words[@]}" 2>/dev/null </dev/null)
    if [[ $found == :files ]]; then
        compopt -o default 2>/dev/null
        COMPREPLY=()
        return
    fi
    COMPREPLY=($found)
    # More follows an option that takes a value.
    [[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
    # bash takes the current word apart at these and replaces the last part only.
    local cut=
    [[ $COMP_WORDBREAKS != *:* || $current != *:* ]] || cut=${current%"${current##*:}"}
    [[ $COMP_WORDBREAKS != *=* || ${current#"$cut"} != *=* ]] || cut=${current%"${current##*=}"}
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}

complete -F _urbd urbd drbdadm drbdsetup drbdmeta
