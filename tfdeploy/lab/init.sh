#!/bin/sh
# PID 1 of a lab host until systemd takes over.
set -eu

# On cgroup v1 the engine mounts the hierarchies read-only; nested containers need them afresh, in this host's namespace.
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
    umount -R /sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    for controller in $(awk '$4 == 1 { print $1 }' /proc/cgroups); do
        mkdir "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" || rmdir "/sys/fs/cgroup/$controller"
    done
    mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
fi

# Every boot has an id of its own, as on a real machine: ansible.builtin.reboot waits for it to change.
cat /proc/sys/kernel/random/uuid > /run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id

if [ -e /lab/password ]; then
    chpasswd < /lab/password
    rm /lab/password
fi

exec /sbin/init
