"""Ways out of a session's container. Each program prints ESCAPED, with what it has reached, if it gets out.

Names in capitals are filled in by the test: a secret of the user's, where it lies, and what the user's machine has.
"""

BEGIN = """
import ctypes, errno, glob, os, socket, stat, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def escaped(*what):
    print("ESCAPED", *what)
def quietly(function, *arguments):
    try:
        return function(*arguments)
    except OSError:
        return None
def read(path):
    return quietly(lambda: open(path, "rb").read()) or b""
def can_write(path):
    return quietly(lambda: open(os.path.join(path, "planted"), "w").close() or True)
def pids():
    return [name for name in os.listdir("/proc") if name.isdigit()]
"""
"""What every program begins with."""

ESCAPES = {
    "environments of all processes": """
for pid in pids():
    if SECRET in read(f"/proc/{pid}/environ") + read(f"/proc/{pid}/cmdline"):
        escaped(pid)
""",
    "the system's folders mounted anew for writing": """
for path in ("/usr", sys.prefix, sys.base_prefix, "/proc"):
    libc.mount(None, path.encode(), None, 32 | 4096, None)
    can_write(path) and escaped(path)
""",
    "the same in a further user namespace": """
if libc.unshare(0x10000000 | 0x20000) == 0:
    for path in ("/usr", sys.prefix, sys.base_prefix):
        libc.mount(None, path.encode(), None, 32 | 4096, None)
        libc.umount2(path.encode(), 2)
        can_write(path) and escaped(path)
""",
    "another proc, sysfs, cgroup or debugfs": """
for kind in ("proc", "sysfs", "cgroup2", "cgroup", "debugfs", "tmpfs", "devtmpfs", "ext4"):
    os.makedirs("/tmp/m", exist_ok=True)
    libc.mount(b"none", b"/tmp/m", kind.encode(), 0, None) == 0 and escaped(kind)
""",
    "capabilities": """
for line in open("/proc/self/status"):
    if line.startswith("Cap") and int(line.split()[1], 16):
        escaped(line)
    if line.startswith("NoNewPrivs") and line.split()[1] != "1":
        escaped(line)
os.getuid() == 0 and escaped("root")
""",
    "the root folder of other processes": """
for pid in pids():
    for link in ("root", "cwd", *(f"fd/{n}" for n in range(20))):
        os.path.exists(f"/proc/{pid}/{link}PLACE") and escaped(pid, link)
        SECRET in read(f"/proc/{pid}/{link}") and escaped(pid, link)
""",
    "the memory of other processes": """
for pid in pids():
    if int(pid) != os.getpid() and libc.ptrace(16, int(pid), None, None) == 0:
        os.waitpid(int(pid), 0)
        for line in read(f"/proc/{pid}/maps").decode().splitlines():
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            with open(f"/proc/{pid}/mem", "rb") as memory:
                content = quietly(lambda: memory.seek(start) and memory.read(end - start)) if start < 2**62 else b""
                SECRET in (content or b"") and escaped(pid)
""",
    "the namespaces of other processes": """
for path in glob.glob("/proc/[0-9]*/ns/*"):
    descriptor = quietly(os.open, path, os.O_RDONLY)
    if descriptor is not None and libc.setns(descriptor, 0) == 0 and os.path.exists("PLACE"):
        escaped(path)
""",
    "shared memory": """
for path in glob.glob("/dev/shm/*") + glob.glob("/dev/mqueue/*") + glob.glob("/run/*"):
    escaped(path)
libc.shmget(SHMKEY, 1, 0) >= 0 and escaped("a segment of System V")
""",
    "keys of the kernel's key rings": """
keyctl = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
if keyctl:
    for ring in (-3, -4, -5):
        key = libc.syscall(keyctl, 10, ring, b"user", b"reflectrl-drill", 0)
        key > 0 and escaped("found", key)
    for line in read("/proc/keys").decode().splitlines():
        content = ctypes.create_string_buffer(100)
        libc.syscall(keyctl, 11, int(line.split()[0], 16), content, 100) > 0 and SECRET in content.raw and escaped(line)
b"reflectrl-drill" in read("/proc/keys") and escaped("listed")
""",
    "sockets": """
def reached(family, address):
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)
        escaped(address)
quietly(reached, socket.AF_UNIX, "\\\\0reflectrl-drill")
quietly(reached, socket.AF_UNIX, "SOCKET")
quietly(reached, socket.AF_INET, ("127.0.0.1", PORT))
for name in os.listdir("/sys/class/net") if os.path.exists("/sys") else ():
    escaped(name)
""",
    "devices": """
for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 11), (stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 8, 0)):
    path = f"/tmp/device-{major}-{minor}"
    quietly(os.mknod, path, kind | 0o666, os.makedev(major, minor))
    os.path.exists(path) and quietly(os.open, path, os.O_RDONLY) is not None and escaped(path)
for name in os.listdir("/dev"):
    if name in ("mem", "kmem", "port", "kmsg", "kvm", "fuse", "net", "vda", "sda", "loop-control", "vsock"):
        escaped(name)
""",
    "programs with a user of their own": """
subprocess.run(["cp", "/usr/bin/id", "mine"])
quietly(os.chmod, "mine", 0o6755)
for path in ["./mine", *glob.glob("/usr/bin/su"), *glob.glob("/usr/bin/newgrp")]:
    done = subprocess.run([path, "-c", "id"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    "uid=0" in done.stdout and escaped(path, done.stdout)
""",
    "settings of the kernel": """
for top in ("/proc", "/sys"):
    for folder, folders, files in os.walk(top):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit() and "self" not in name]
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path) and quietly(os.open, path, os.O_WRONLY | os.O_NONBLOCK) is not None:
                escaped(path)
os.path.exists("/sys/fs/cgroup") and escaped("cgroups")
""",
    "a changed interpreter": """
for path in (sys.executable, os.path.realpath(sys.executable), os.__file__, "/usr/bin/env"):
    quietly(os.open, path, os.O_WRONLY) is not None and escaped(path)
    quietly(os.remove, path)
    os.path.exists(path) or escaped("removed", path)
for path in sys.path:
    os.path.isdir(path) and not path.startswith(os.getcwd()) and can_write(path) and escaped(path)
""",
    "programs for the next start": """
for path in (".git/hooks/pre-commit", ".git/config", "../../planted", "/etc/profile.d/x.sh", "/root/.bashrc"):
    quietly(os.makedirs, os.path.dirname(path) or ".", 0o755, True)
    quietly(lambda: open(path, "w").write("touch /tmp/planted"))
""",
    "descriptors that were left open": """
for name in os.listdir("/proc/self/fd"):
    number = int(name)
    state = quietly(os.fstat, number)
    if state is None or number > 2 and os.path.exists(f"/proc/self/fd/{number}/.."):
        continue
    stat.S_ISDIR(state.st_mode) and os.path.exists(f"/proc/self/fd/{number}PLACE") and escaped(name)
    stat.S_ISSOCK(state.st_mode) and escaped(name)
""",
    "words typed into the terminal": """
import fcntl
for path in ("/dev/tty", "/dev/console", "/proc/1/fd/0", "/proc/1/fd/2"):
    terminal = quietly(os.open, path, os.O_RDWR | os.O_NOCTTY)
    if terminal is not None and os.isatty(terminal) and quietly(fcntl.ioctl, terminal, 0x5412, b"x") is not None:
        escaped(path)
""",
    "signals to other processes": """
quietly(os.kill, HOST, 0) is None and os.path.exists("/proc/HOST") and escaped("HOST")
for number in range(2, 200):
    if f"{number}" not in pids() and quietly(lambda: os.kill(number, 0) or True):
        escaped(number)
""",
    "a process that stays": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "97531"])
    os._exit(0)
""",
    "modules of the kernel, tracing and its programs": """
libc.syscall(321, 0, ctypes.byref(ctypes.create_string_buffer(72)), 72) >= 0 and escaped("bpf")
libc.syscall(313, 0, b"", 0) == 0 and escaped("finit_module")
libc.syscall(103, 10, None, 0) > 0 and escaped("syslog")
libc.sethostname(b"x", 1) == 0 and escaped("sethostname")
libc.chroot(b"/usr") == 0 and escaped("chroot")
""",
}
"""Ways to get out, in words, with the program that tries each."""
