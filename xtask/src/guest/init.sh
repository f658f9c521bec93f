#!/bin/busybox sh
# The first process of a guest: mounts, modules, /script, off. Its console is what xtask reads.
/bin/busybox --install -s /bin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export BPVS_BIN=/bin/bpvs BPVS_BPF_OBJECT=/bpvs.o
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /run
mount -t tmpfs none /tmp
mount -t bpf none /sys/fs/bpf
mount -t cgroup2 none /sys/fs/cgroup
# What the kernel says of each refused connection would fill the console.
echo 1 >/proc/sys/kernel/printk
ip link set lo up
for module in /modules/*; do
	insmod "$module" || { echo "$module cannot be loaded"; echo "ended 1"; reboot -f; }
done
echo "kernel $(uname -r)"
sh /script 2>&1
echo "ended $?"
reboot -f
