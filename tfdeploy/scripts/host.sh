# What every script that works on a job shares. Before it stand: home, job, generation, holder.
# A script answers in records: a record separator and a word, then lines.
umask 077
export LC_ALL=C
# The docker command lives too shortly for a collection of garbage to pay: a sixth less of its time.
export GOGC=off
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
jobs=$home/jobs
own=$jobs/$job
# A local job is kept by the Python that tfdeploy itself runs with.
[ -n "$python" ] || { [ -r "$own/python" ] && read -r python <"$own/python"; } || python=python3
unset step

record() { printf '\036%s\n' "$1"; }
have() { command -v "$1" >/dev/null 2>&1; }
age() { echo $(($(date +%s) - $(stat -c %Y "$1" 2>/dev/null || echo 0))); }

# From here on a command that fails ends the script, and the controller hears at which step.
carefully() {
    set -e
    trap 'code=$?; [ "$code" = 0 ] || { record failed; printf "%s\n" "${step-}"; }' EXIT
}

# The host's lock is a file that says who holds it; its age says when the holder was last alive.
# flock on the directory makes looking and taking one step.
take_lock() {
    [ -d "$home" ] || mkdir -p "$home"
    exec 8<"$home"
    flock 8
    if [ -e "$home/lock" ] && [ "$(cat "$home/lock")" != "$holder" ] && [ "$(age "$home/lock")" -le "$1" ]; then
        record held
        cat "$home/lock"
        trap - EXIT
        exit 75
    fi
    printf '%s\n' "$holder" >"$home/lock"
    exec 8<&-
}
keep_lock() { [ "$(cat "$home/lock" 2>/dev/null)" != "$holder" ] || touch -c "$home/lock"; }
release_lock() { [ "$(cat "$home/lock" 2>/dev/null)" != "$holder" ] || rm -f "$home/lock"; }

# alone: no two scripts work on jobs here at a time. One whose controller was interrupted may still run, and what
# undoes it must not overtake it.
alone() {
    [ -d "$jobs" ] || return 0
    exec 9<"$jobs"
    flock -w 240 9
}

# What was planned must still be true.
moved() {
    record moved
    echo "$1"
    trap - EXIT
    exit 76
}
others() {
    for directory in "$jobs"/*/; do
        [ -f "$directory/reserved" ] || continue
        name=${directory%/}
        read -r known <"$directory/generation"
        [ "$directory" = "$own/" ] || echo "${name##*/} $known"
    done
}
check_others() { [ "$(others)" = "$1" ] || moved 'another job came or went'; }
# Ports as decimal:hexadecimal.
check_ports() {
    listening=$(awk '$4 == "0A" { print substr($2, length($2) - 3) }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
    for port; do
        case $listening in *"${port#*:}"*) moved "port ${port%:*} is taken by somebody else" ;; esac
    done
}

# Tasks that are plain processes go through these directories as their own users.
make_jobs() {
    umask 066
    mkdir -p "$jobs"
    umask 077
}
begin_job() {
    other_launch
    umask 066
    mkdir -p "$own/tasks"
    umask 077
    echo "$generation" >"$own/generation"
}
other_launch() {
    if [ -e "$own/generation" ] && [ "$(cat "$own/generation")" != "$generation" ]; then
        # Under the lock nobody else is in the middle of it: one that holds nothing was broken off.
        [ -e "$own/reserved" ] || { clear_away; return; }
        record exists
        cat "$own/generation"
        trap - EXIT
        exit 77
    fi
}
clear_away() {
    ids=$(! in_docker || containers)
    [ -z "$ids" ] || docker rm --force --volumes $ids >/dev/null
    remove_directory
}
# A file is there whole or not at all.
put() {
    cat >"$1.new"
    mv "$1.new" "$1"
}
# The host's own names, then the job's; `?name` is an address to be looked up here, as this host sees it.
make_hosts() {
    umask 022
    {
        cat /etc/hosts
        echo "# tfdeploy: $job"
        while read -r address name; do
            case $address in
                \?*)
                    asked=${address#?}
                    address=$(getent hosts "$asked" | awk '{ print $1; exit }')
                    [ -n "$address" ] || { echo "the address $asked of $name is not known there" >&2; return 1; }
                    ;;
            esac
            echo "$address $name"
        done
    } >"$own/hosts"
    umask 077
}
task_directory() {
    step=$1
    directory=$own/tasks/$1
    umask 066
    mkdir -p "$directory/outputs"
    umask 077
}
# secret NAME VALUE: printf is the shell's own, so that no process list shows it.
secret() {
    mkdir -p -m 700 "$directory/secrets"
    rm -f "$directory/secrets/$1"
    printf '%s' "$2" >"$directory/secrets/$1"
    chmod 400 "$directory/secrets/$1"
}
give() { # give OWNER: what the task writes and what only it may read
    [ "$1" != 0:0 ] || return 0
    for each in "$directory/outputs" "$directory/secrets"; do
        [ ! -e "$each" ] || chown -R "$1" "$each"
    done
    [ -z "${made_shared-}" ] || chown "$1" "$shared" || :
}

# Whoever runs plain processes need not be allowed to ask the engine.
in_docker() { [ ! -e "$own/keeper.py" ] && have docker; }
containers() { timeout 30 docker ps --all --quiet --no-trunc --filter "label=tfdeploy.job=$job" "$@"; }
# The uid and gid of a container's user, from its own passwd file where it has a name.
owner_of() {
    case $2 in
        '') echo 0:0 ;;
        *[!0-9:]*)
            docker cp "$1:/etc/passwd" - | tar -xO |
                awk -F: -v name="${2%%:*}" '$1 == name { print $3 ":" $4; found = 1 } END { exit !found }' ||
                { echo "the image has no user $2" >&2; return 1; }
            ;;
        *) echo "$2" ;;
    esac
}

# With systemd a unit keeps the keeper's whole group together and sets its limits.
start_process() {
    task=$1 grace=$2
    shift 2
    directory=$own/tasks/$task
    rm -f "$directory/state.json"
    if [ -d /run/systemd/system ] && [ "$(id -u)" = 0 ]; then
        systemctl reset-failed "tfdeploy-$job-$task" 2>/dev/null || :
        systemd-run --quiet --collect --unit="tfdeploy-$job-$task" --property=KillMode=mixed --property=OOMPolicy=continue \
            --property=TimeoutStopSec=$((grace + 10)) "$@" "$python" "$own/keeper.py" run "$directory" </dev/null
        tries=0
        until [ -e "$directory/state.json" ] || [ $((tries += 1)) -gt 100 ]; do sleep 0.1; done
        [ -e "$directory/state.json" ]
    else
        "$python" "$own/keeper.py" start "$directory" </dev/null
    fi
}

# leash COMMAND…: ends it when the script's standard input does, which is when the controller has gone.
exec 3<&0
leash() {
    unset GOGC
    "$@" </dev/null 3<&- &
    child=$!
    { read -r _ <&3; kill "$child"; } >/dev/null 2>&1 &
    hand=$!
    wait "$child"
    code=$?
    kill "$hand" 2>/dev/null
    return $code
}

# make_shared DIRECTORY MODE: the job's own part of it. It is never removed: checkpoints are there.
make_shared() {
    step="shared: $1"
    [ -d "$1" ] || { echo "there is no directory $1" >&2; false; }
    shared=$1/$job
    ! mkdir -m "$2" "$shared" 2>/dev/null || made_shared=yes
    [ -d "$shared" ]
    put "$own/shared" <<END
$shared
END
}

# --- how things are --------------------------------------------------------------------------------------

read_job() {
    record launch
    cat "$own/launch.json" 2>/dev/null
    record watch
    [ ! -e "$own/watch" ] || { age "$own/watch"; cat "$own/watch"; }
    record outcome
    cat "$own/outcome" 2>/dev/null
}
# look [CONTAINER…]: how the job's tasks are; those who know their containers' names save a question.
look() {
    record now
    date +%s
    record stopped
    for each in "$own"/tasks/*/stopped; do
        [ ! -e "$each" ] || { each=${each%/stopped}; echo "${each##*/}"; }
    done
    record containers
    if in_docker; then
        ids=${*:-$(containers)} || { record broken; echo 'the Docker engine does not answer'; return 0; }
        [ -z "$ids" ] || timeout 30 docker inspect --format \
            '{"task":{{json (index .Config.Labels "tfdeploy.task")}},"generation":{{json (index .Config.Labels "tfdeploy.generation")}},"state":{{json .State}},"restarts":{{.RestartCount}}}' \
            $ids 2>/dev/null || :
    fi
    record processes
    [ ! -e "$own/keeper.py" ] || "$python" "$own/keeper.py" look "$own"/tasks/*/ </dev/null
}
# CPU time in microseconds and memory in bytes of each task; twice, for the difference.
usage() {
    pids=
    ! in_docker || ! ids=$(containers) || [ -z "$ids" ] ||
        pids=$(docker inspect --format '{{index .Config.Labels "tfdeploy.task"}} {{.State.Pid}}' $ids 2>/dev/null)
    record usage
    sample
    sleep 0.25
    record usage
    sample
    record later
    [ ! -e "$own/keeper.py" ] || "$python" "$own/keeper.py" look "$own"/tasks/*/ </dev/null
}
sample() {
    cut -d' ' -f1 /proc/uptime
    echo "$pids" | while read -r task pid; do
        [ "${pid:-0}" -gt 0 ] && [ -e "/proc/$pid/cgroup" ] || continue
        group=$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
        if [ -e "/sys/fs/cgroup$group/memory.current" ]; then
            cpu=$(sed -n 's/^usage_usec //p' "/sys/fs/cgroup$group/cpu.stat")
            memory=$(cat "/sys/fs/cgroup$group/memory.current")
        else
            group=$(sed -n 's/^[0-9]*:memory://p' "/proc/$pid/cgroup")
            memory=$(cat "/sys/fs/cgroup/memory$group/memory.usage_in_bytes")
            group=$(sed -n 's/^[0-9]*:\(cpu,\)\{0,1\}cpuacct\(,cpu\)\{0,1\}://p' "/proc/$pid/cgroup")
            cpu=$(($(cat "/sys/fs/cgroup/cpuacct$group/cpuacct.usage") / 1000))
        fi 2>/dev/null
        echo "$task ${cpu:-0} ${memory:-0}"
    done
}
watch_processes() {
    while [ -d "$own" ]; do
        new=$(cat "$own"/tasks/*/state.json 2>/dev/null | cksum)
        [ "$new" = "${old-}" ] || echo changed
        old=$new
        sleep 0.5
    done
}
list_jobs() {
    for directory in "$jobs"/*/; do
        [ -e "$directory/launch.json" ] || continue
        directory=${directory%/}
        echo "${directory##*/}"
    done
}

# --- locks, the watch and the line -----------------------------------------------------------------------

# beat STALE: one watches, until it gives no sign of life.
beat() {
    [ -d "$own" ] || return 0
    exec 8<"$own"
    flock 8
    if [ -e "$own/watch" ] && [ "$(cat "$own/watch")" != "$holder" ] && [ "$(age "$own/watch")" -le "$1" ]; then
        record held
        cat "$own/watch"
    else
        printf '%s\n' "$holder" >"$own/watch"
    fi
    exec 8<&-
}
release_watch() { [ "$(cat "$own/watch" 2>/dev/null)" != "$holder" ] || rm -f "$own/watch"; }
lock_status() {
    record lock
    [ ! -e "$home/lock" ] || { age "$home/lock"; cat "$home/lock"; }
    for each in "$jobs"/*/watch; do
        [ -e "$each" ] || continue
        record watch
        age "$each"
        cat "$each"
    done
}
lock_release() {
    lock_status
    rm -f "$home/lock" "$jobs"/*/watch
}
# stand_in_line TICKET STALE: tickets begin with their time, so that their names are the order.
stand_in_line() {
    mkdir -p "$home/queue"
    : >"$home/queue/$1"
    record queue
    for each in "$home/queue"/*; do
        if [ "$(age "$each")" -le "$2" ]; then echo "${each##*/}"; else rm -f "$each"; fi
    done
}
leave_line() {
    rm -f "$home/queue/$1"
    rmdir "$home/queue" 2>/dev/null || :
}

# --- the end ---------------------------------------------------------------------------------------------

# stop_tasks GRACE TASK…: what we stopped is not taken for something that failed.
stop_tasks() {
    grace=$1 ids=
    shift
    for task; do
        [ ! -d "$own/tasks/$task" ] || : >"$own/tasks/$task/stopped"
        ids="$ids $(in_docker && containers --filter "label=tfdeploy.task=$task")"
    done
    for task; do
        shift
        set -- "$@" "$own/tasks/$task"
    done
    [ ! -e "$own/keeper.py" ] || "$python" "$own/keeper.py" stop "$@" </dev/null
    ids=$(echo $ids)
    [ -z "$ids" ] || docker stop --time "$grace" $ids >/dev/null
}
undo() {
    code=0
    alone || return 1
    if [ "$(cat "$own/generation" 2>/dev/null)" = "$generation" ]; then
        [ ! -e "$own/keeper.py" ] || "$python" "$own/keeper.py" stop "$own"/tasks/*/ </dev/null 2>/dev/null || :
        remove_containers || code=1
        # Where containers are left, so is what finds them again.
        [ "$code" != 0 ] || remove_directory
    fi
    rmdir "$jobs" 2>/dev/null || :
    release_lock
    return $code
}
remove_containers() {
    in_docker || return 0
    ids=$(containers --filter "label=tfdeploy.generation=$generation") || return 1
    [ -z "$ids" ] || docker rm --force --volumes $ids >/dev/null
}
survey() {
    [ ! -e "$own/collected" ] || return 0
    for directory in "$own"/tasks/*/outputs; do
        [ -d "$directory" ] && [ -n "$(find "$directory" -mindepth 2 -print -quit)" ] || continue
        task=${directory%/outputs}
        record outputs
        echo "${task##*/}"
        du -sk "$directory" | cut -f1
    done
}
# Where a task has one output directory, its files are collected as they are; else each directory by its number.
cd_outputs() {
    cd "$own/tasks/$1/outputs" || return
    [ -e 1 ] || cd 0
}
# remove_job GRACE [discard]: stopped first, because a task may save something when it is told to end.
remove_job() {
    step='waiting for another command'
    alone
    step='stopping its tasks'
    ids=
    ! in_docker || ids=$(containers)
    [ ! -d "$own" ] && [ -z "$ids" ] || record found
    record kept
    [ -z "$ids" ] || docker inspect --format 'image {{.Image}} {{.Config.Image}}' $ids | sort -u
    [ ! -e "$own/shared" ] || echo "shared $(cat "$own/shared")"
    for each in "$own"/tasks/*/; do [ ! -d "$each" ] || : >"$each/stopped"; done
    if [ -e "$own/keeper.py" ]; then
        for each in "$own"/tasks/*/; do
            [ ! -e "$each/state.json" ] || "$python" "$own/keeper.py" stop "$each" </dev/null &
        done
        wait
    fi
    [ -z "$ids" ] || docker stop --time "$1" $ids >/dev/null
    if [ "${2-}" != discard ]; then
        left=$(survey)
        [ -z "$left" ] || { printf '%s\n' "$left"; return 0; }
    fi
    step='removing its containers'
    [ -z "$ids" ] || docker rm --force --volumes $ids >/dev/null
    step='removing its directory'
    remove_directory
    case $(cat "$home/lock" 2>/dev/null) in "$job	"*) rm -f "$home/lock" ;; esac
    record removed
}
# Gone at once for whoever looks, and whoever writes there at this moment writes to what is being removed.
remove_directory() {
    gone=$jobs/.gone-$job
    [ ! -d "$gone" ] || rm -rf "$gone"
    [ ! -d "$own" ] || mv "$own" "$gone"
    rm -rf "$gone"
    rmdir "$jobs" 2>/dev/null || :
}
