"""The way into a jail: `python entrance.py LIMITS PROGRAM...`, of the standard library alone.

Three processes: the outer one waits; the second is the first in the new namespace of processes,
makes the file system, and waits for whatever is left without a parent; the third gives up all
rights and becomes the program. When the third ends, the second does, and the system ends the rest.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypedDict

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC = 1, 2, 4, 8
REMOUNT, BIND, RECURSIVE, PRIVATE = 32, 4096, 16384, 1 << 18
DETACH = 2
DEATH_SIGNAL, SUBREAPER, NO_NEW_RIGHTS = 1, 36, 38
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix")
CPU = ("/sys/devices/system/cpu", "/sys/devices/system/node")
DEVICES = ("null", "zero", "full", "random", "urandom")

libc = ctypes.CDLL(None, use_errno=True)


class Order(TypedDict):
    """The limits, as `Jail.command` writes them."""

    writable: list[str]
    readable: list[str]
    hidden: list[str]
    network: bool
    memory: int
    processes: int
    file: int
    open: bool
    parent: int
    user: int


def main() -> NoReturn:
    """Make the jail and run the program in it; end as it does."""
    order: Order = json.loads(sys.argv[1])
    program = sys.argv[2:]
    is_root = os.geteuid() == 0
    here = os.getcwd()
    control(DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != order["parent"]:
        os._exit(1)
    if not order["open"]:
        unshare(order, is_root)
    parent = os.getpid()
    second = os.fork()
    if second == 0:
        control(DEATH_SIGNAL, signal.SIGTERM if order["open"] else signal.SIGKILL)
        if os.getppid() not in (parent, 0):
            os._exit(1)
        watch(order, program, here, is_root)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: end_process(second))
    leave(status_of(second))


def end_process(pid: int) -> None:
    """Ask a process to end, also if it is stopped."""
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGCONT)


def watch(order: Order, program: list[str], here: str, is_root: bool) -> NoReturn:
    """Be the first process inside: run the program, collect what ends, and end all."""
    signal.signal(signal.SIGTERM, lambda *_: end_all(order, 128 + signal.SIGTERM))
    if order["open"]:
        control(SUBREAPER, 1)
    else:
        furnish(order, is_root)
    third = os.fork()
    if third == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        become(order, program, here, is_root)
    end_all(order, status_of(third))


def end_all(order: Order, status: int) -> NoReturn:
    """End all processes inside, and then this one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if order["open"]:  # without a namespace, children are ended by hand until there are none
        with suppress(ChildProcessError):
            while True:
                for pid in descendants(os.getpid()):
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    os._exit(status)


def descendants(root: int) -> Iterator[int]:
    """Yield the processes below another one, as the system lists them."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, ValueError, IndexError):
            stat = Path("/proc", name, "stat").read_text()
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    own = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in own} - own
        if not more:
            return
        own |= more
        yield from more


def status_of(child: int) -> int:
    """Wait for a child, collecting others, and return its exit status."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def leave(status: int) -> NoReturn:
    """End as the program did: by the same signal, if it was one that ends a process."""
    if status > 128 and status - 128 in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            signal.signal(status - 128, signal.SIG_DFL)
        os.kill(os.getpid(), status - 128)
    os._exit(status)


def become(order: Order, program: list[str], here: str, is_root: bool) -> NoReturn:
    """Give up rights, take limits, and run the program."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: order["memory"],
        resource.RLIMIT_FSIZE: order["file"],
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    if not order["open"]:
        if is_root:
            os.setgroups([])
            os.setresgid(order["user"], order["user"], order["user"])
            os.setresuid(order["user"], order["user"], order["user"])
        limit = order["processes"] + 2
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    control(NO_NEW_RIGHTS, 1)
    with suppress(OSError):
        os.chdir(here)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


# --- namespaces ----------------------------------------------------------------------------------


def unshare(order: Order, is_root: bool) -> None:
    """Leave the namespaces of the system."""
    user, group = os.getuid(), os.getgid()
    flags = NEW_MOUNTS | NEW_PIDS | NEW_IPC | NEW_HOSTNAME
    flags |= 0 if order["network"] else NEW_NETWORK
    check(libc.unshare(flags | (0 if is_root else NEW_USER)), "unshare")
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def furnish(order: Order, is_root: bool) -> None:
    """Replace the file system by one with little in it."""
    mount("none", "/", None, RECURSIVE | PRIVATE)
    root = "/tmp"
    kinds = dict.fromkeys((*SYSTEM, *CPU, *order["readable"]), "readable")
    kinds |= dict.fromkeys(order["hidden"], "hidden")
    kinds |= dict.fromkeys(order["writable"], "writable")
    opened = {path: os.open(path, os.O_PATH) for path in kinds if os.path.exists(path)}
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "size=1g,mode=755")
    for path in sorted(opened, key=lambda each: (len(Path(each).parts), each)):
        if kinds[path] != "hidden":
            take(opened[path], path, root, kinds[path] == "readable")
        elif os.path.isdir(root + path):
            mount("tmpfs", root + path, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
        if is_root and kinds[path] == "writable":
            own(root + path, order["user"])
    os.makedirs(f"{root}/dev/shm", exist_ok=True)
    for name, place in devices.items():
        Path(f"{root}/dev/{name}").touch()
        mount(f"/proc/self/fd/{place}", f"{root}/dev/{name}", None, BIND)
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", NO_SUID | NO_DEVICES | NO_EXEC, "size=1g,mode=1777")
    os.makedirs(f"{root}/tmp", exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)
    os.makedirs(f"{root}/proc", exist_ok=True)
    mount("proc", f"{root}/proc", "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    for place in (*opened.values(), *devices.values()):
        os.close(place)
    os.makedirs(f"{root}/old", exist_ok=True)
    check(libc.pivot_root(root.encode(), f"{root}/old".encode()), "pivot_root")
    os.chdir("/")
    check(libc.umount2(b"/old", DETACH), "umount")
    os.rmdir("/old")


def take(place: int, path: str, root: str, is_fixed: bool) -> None:
    """Show an opened file or folder at its path below the new root."""
    source, target = f"/proc/self/fd/{place}", root + path
    if os.path.islink(path) and not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with suppress(OSError):
            os.symlink(os.readlink(path), target)
            return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            Path(target).touch()
    mount(source, target, None, BIND)
    found = os.statvfs(target).f_flag
    kept = found & (NO_SUID | NO_DEVICES | NO_EXEC | 1024 | 2048)
    kept |= 1 << 21 if found & 4096 else 0  # times of access are relative
    flags = REMOUNT | BIND | NO_SUID | NO_DEVICES | kept
    mount("none", target, None, flags | (READ_ONLY if is_fixed else 0))


def own(folder: str, user: int) -> None:
    """Give a folder and all inside to the user whom the program will be."""
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(place, name), user, user, follow_symlinks=False)


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Call the system's `mount`."""
    texts = [each.encode() if each else None for each in (source, target, kind, data)]
    status = libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3])
    check(status, f"mount of `{target}`")


def control(what: int, value: int) -> None:
    """Call the system's `prctl`."""
    check(libc.prctl(what, value, 0, 0, 0), "prctl")


def check(status: int, what: str) -> None:
    """Raise OSError if a call of the system failed."""
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
