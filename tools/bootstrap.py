"""Make `.venv` with exactly what `requirements.lock` pins. Standard library only; make runs it first.

It must work on a machine with Python >= 3.11 and make and nothing else, so it assumes neither pip, nor
ensurepip, nor a compiler, git or a home directory. Only wheels are installed, each checked against the
hashes of the lock file, and only into `.venv`: the interpreter's own packages are never touched, which is
also what PEP 668 asks for.

A stamp in `.venv` holds a digest of all that went in; a second call compares it and returns at once. It is
written last, so that an interrupted run is seen and done again. Syntax here stays readable for Python 3.6:
an old interpreter must get as far as saying that it is too old.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

MINIMUM = (3, 11)
ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CACHE = ROOT / ".cache"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "sharing-affinity-stamp.json"
ATTEMPTS = 3
# Settings of a user's pip that would send packages elsewhere than into .venv, or make it refuse to work.
UNWANTED = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON")
# What pip prints when the network, not the request, is at fault: worth another try.
TRANSIENT = re.compile(
    r"timed out|Connection|ProxyError|RemoteDisconnected|IncompleteRead|Temporary failure"
    r"|Network is unreachable|HTTP error 5\d\d|Max retries|ProtocolError|SSLError|ReadTimeout|EOF occurred",
    re.IGNORECASE,
)
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


class SetupError(Exception):
    """Something the person at the terminal has to change; the text says what to type."""


def say(text: str) -> None:
    print("bootstrap: " + text, flush=True)


def old_python() -> "str | None":
    """The message for an interpreter that is too old, None for a good one."""
    if sys.version_info >= MINIMUM:
        return None
    return (
        "Python 3.11 or newer is needed, {} is {}.{}. Name a newer one: make PYTHON=/path/to/python3.11"
    ).format(sys.executable, *sys.version_info[:2])


# -------------------- what is wanted


def digest(*paths: pathlib.Path) -> str:
    """SHA-256 over the contents of the files, in order."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()


def wanted() -> "dict[str, str]":
    """All that decides what `.venv` contains. Two equal answers mean that nothing has to be done."""
    return {
        "lock": digest(LOCK),
        "project": digest(ROOT / "pyproject.toml", pathlib.Path(__file__)),
        "interpreter": str(pathlib.Path(sys.executable).resolve()),
        "version": sys.version,
        "place": str(VENV),
    }


def found() -> "dict[str, str]":
    """What the stamp says `.venv` contains; empty when there is no usable `.venv`."""
    with contextlib.suppress(OSError, ValueError):
        if python_of(VENV).exists():
            stamp = json.loads(STAMP.read_text())
            if isinstance(stamp, dict):
                return stamp
    return {}


def write_stamp(stamp: "dict[str, str]") -> None:
    fresh = STAMP.with_suffix(".new")
    fresh.write_text(json.dumps(stamp, indent=1))
    fresh.replace(STAMP)


# -------------------- environment


def python_of(venv: pathlib.Path) -> pathlib.Path:
    return venv / "bin" / "python"


def writable_home(home: str) -> bool:
    return bool(home) and pathlib.Path(home).is_dir() and os.access(home, os.W_OK | os.X_OK)


def environment() -> "dict[str, str]":
    """This process's environment without what would mislead pip.

    A missing or read-only home is replaced by a folder under `.cache`, since pip and others would otherwise
    write to a folder called `~`, or fail. Index, proxy and certificate settings of the user stay.
    """
    env = {k: v for k, v in os.environ.items() if k not in UNWANTED and not k.startswith("PYTHON")}
    env["PYTHONNOUSERSITE"] = "1"
    env["PYTHONIOENCODING"] = "utf-8"
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    env["PIP_NO_INPUT"] = "1"
    env["PIP_USER"] = "0"
    env["PIP_REQUIRE_VIRTUALENV"] = "0"
    env["PIP_ROOT_USER_ACTION"] = "ignore"
    if not writable_home(env.get("HOME", "")):
        home = CACHE / "home"
        home.mkdir(parents=True, exist_ok=True)
        env["HOME"] = str(home)
        env.setdefault("PIP_CACHE_DIR", str(CACHE / "pip"))
    bundle = CACHE / "ca-certificates.crt"
    if bundle.exists() and not system_certificates():
        env.setdefault("PIP_CERT", str(bundle))
    return env


def system_certificates() -> bool:
    """Whether the machine has a bundle of certificate authorities where programs look for it."""
    places = (
        os.environ.get("SSL_CERT_FILE", ""),
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
        "/etc/ssl/ca-bundle.pem",
    )
    return any(place and pathlib.Path(place).is_file() for place in places)


def run(command: "list[str]", folder: pathlib.Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Run quietly; the caller looks at the return code."""
    return subprocess.run(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
        cwd=folder,
    )


# -------------------- making .venv


def make_venv() -> None:
    """A bare virtual environment without pip. Needs neither ensurepip nor the module `venv`."""
    if importlib.util.find_spec("venv"):
        made = run([sys.executable, "-I", "-m", "venv", "--without-pip", "--clear", str(VENV)])
        if made.returncode == 0:
            return
    shutil.rmtree(VENV, ignore_errors=True)
    site = VENV / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"
    site.mkdir(parents=True)
    (VENV / "bin").mkdir()
    base = pathlib.Path(sys.executable).resolve()
    for name in ("python", "python3"):
        (VENV / "bin" / name).symlink_to(base)
    (VENV / "pyvenv.cfg").write_text(
        "home = {}\ninclude-system-site-packages = false\nversion = {}.{}.{}\n".format(
            base.parent, *sys.version_info[:3]
        )
    )


def works(pip: "list[str]") -> bool:
    return run([*pip, "--version"]).returncode == 0


def pip_inside() -> "list[str]":
    return [str(python_of(VENV)), "-m", "pip"]


def pip_from_wheel(wheel: pathlib.Path) -> bool:
    """Install pip into `.venv` with the pip that is inside the wheel itself."""
    inside = [str(python_of(VENV)), str(wheel / "pip")]
    if not works(inside):
        return False
    run([*inside, "install", "--quiet", "--no-index", "--no-deps", str(wheel)])
    return works(pip_inside())


def find_pip() -> "list[str]":
    """The command of a pip that installs into `.venv`; the ways are tried from the plainest to the farthest.

    ensurepip; wheels that a distribution ships for it; the pip of this interpreter, acting on `.venv` from
    outside; Debian's package of the wheel, unpacked into the cache without installing it.
    """
    if works(pip_inside()):
        return pip_inside()
    if importlib.util.find_spec("ensurepip"):
        run([str(python_of(VENV)), "-m", "ensurepip", "--default-pip"])
        if works(pip_inside()):
            return pip_inside()
    for folder in ("/usr/share/python-wheels", "/usr/share/python-pip-wheels"):
        for wheel in sorted(pathlib.Path(folder).glob("pip-*.whl"), reverse=True):
            if pip_from_wheel(wheel):
                return pip_inside()
    outside = [sys.executable, "-m", "pip", "--python", str(python_of(VENV))]
    if importlib.util.find_spec("pip") and works(outside):
        return outside
    reason = "there is no apt-get here"
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        say("no pip and no ensurepip here: unpacking Debian's pip into the cache (nothing is installed)")
        try:
            for wheel in debian_pip():
                if pip_from_wheel(wheel):
                    return pip_inside()
            reason = "Debian's pip does not run with " + sys.executable
        except SetupError as problem:
            reason = str(problem)
    raise SetupError(
        f"this Python has no pip and no ensurepip, and no other way worked ({reason}). Type this once, then "
        f"make again:\n    {install_line()}"
    )


def install_line() -> str:
    """The command that gives this system's Python its missing half."""
    release = ""
    with contextlib.suppress(OSError):
        release = pathlib.Path("/etc/os-release").read_text()
    words = " ".join(re.findall(r'^(?:ID|ID_LIKE)="?([^"\n]*)', release, re.MULTILINE)).split()
    sudo = "" if os.geteuid() == 0 else "sudo "
    version = "{}.{}".format(*sys.version_info[:2])
    lines = {
        "debian": "{0}apt-get update && {0}apt-get install -y python3-venv",
        "ubuntu": "{0}apt-get update && {0}apt-get install -y python3-venv",
        "fedora": "{0}dnf install -y python3-pip",
        "rhel": "{0}dnf install -y python{1}-pip",
        "suse": "{0}zypper install -y python3-pip",
        "alpine": "{0}apk add py3-pip",
        "arch": "{0}pacman -S --noconfirm python-pip",
    }
    for word in words:
        if word in lines:
            return lines[word].format(sudo, version)
    return f"{sudo}{sys.executable} -m ensurepip"


# -------------------- Debian without pip


def debian_pip() -> "list[pathlib.Path]":
    """pip wheels out of Debian's own package, fetched and unpacked; nothing is installed, root is not needed.

    apt keeps its state in a folder of ours, so that this works for a plain user and on a machine whose
    package lists were never fetched. Where the machine has no certificate authorities, Debian's are taken
    the same way.
    """
    wheels = sorted((CACHE / "debian").glob("**/pip-*.whl"), reverse=True)
    if wheels and (system_certificates() or (CACHE / "ca-certificates.crt").exists()):
        return wheels
    packages = ["python3-pip-whl"]
    if not system_certificates():
        packages.append("ca-certificates")
    state = CACHE / "apt"
    for part in ("state/lists/partial", "cache/archives/partial", "log"):
        (state / part).mkdir(parents=True, exist_ok=True)
    private = [
        "apt-get",
        "-q",
        "-o", f"Dir::State={state}/state",
        "-o", "Dir::State::status=/var/lib/dpkg/status",
        "-o", f"Dir::Cache={state}/cache",
        "-o", f"Dir::Log={state}/log",
        "-o", "Acquire::Retries=3",
    ]  # fmt: skip
    if os.geteuid() == 0:
        private += ["-o", "APT::Sandbox::User=root"]  # the clone may lie where the user _apt cannot go
    downloads = CACHE / "debian"
    downloads.mkdir(parents=True, exist_ok=True)
    got = run(["apt-get", "-q", "-o", "Acquire::Retries=3", "download", *packages], downloads)
    if got.returncode:
        updated = run([*private, "update"])
        got = run([*private, "download", *packages], downloads)
        if got.returncode:
            lines = (updated.stdout + got.stdout).strip().splitlines()
            raise SetupError("apt-get download: " + (lines[-1] if lines else "failed without a word"))
    for package in sorted(downloads.glob("*.deb")):
        unpacked = run(["dpkg-deb", "-x", str(package), str(downloads)])
        if unpacked.returncode:
            package.unlink()
            raise SetupError("dpkg-deb: " + unpacked.stdout.strip())
    authorities = sorted((downloads / "usr/share/ca-certificates").glob("**/*.crt"))
    if authorities:
        bundle = CACHE / "ca-certificates.crt"
        bundle.write_text("".join(path.read_text() for path in authorities))
    return sorted(downloads.glob("**/pip-*.whl"), reverse=True)


# -------------------- running pip


def pinned() -> int:
    """Number of packages in the lock file; some may not apply to this platform."""
    return len(re.findall(r"^[A-Za-z0-9][^\n=]*==", LOCK.read_text(), re.MULTILINE))


def install(command: "list[str]", what: str, total: int = 0) -> None:
    """Run one pip install, showing how far it is; again after a failure of the network."""
    for attempt in range(1, ATTEMPTS + 1):
        code, output = follow(command, what, total)
        if code == 0:
            return
        if attempt < ATTEMPTS and TRANSIENT.search(output) and UNTRUSTED not in output:
            pause = 5 * attempt
            say(f"the network failed, trying again in {pause} s ({attempt} of {ATTEMPTS})")
            time.sleep(pause)
            continue
        raise SetupError(diagnose(command, output))


def follow(command: "list[str]", what: str, total: int) -> "tuple[int, str]":
    """pip's output folded into one moving line on a terminal, or a line now and then elsewhere."""
    terminal = sys.stdout.isatty()
    output = []
    seen = 0
    started = time.monotonic()
    with subprocess.Popen(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if line.startswith("Collecting "):
                seen += 1
                state = f"{what} {seen}/{total} {line.split()[1].split('==')[0]}"
            elif line.startswith("Installing collected packages"):
                state = f"{what}: unpacking"
            else:
                continue
            if terminal:
                print(f"\r\033[Kbootstrap: {state}", end="", flush=True)
            elif seen % 20 == 0 or "unpacking" in state:
                say(f"{state} ({time.monotonic() - started:.0f} s)")
        code = process.wait()
    if terminal:
        print("\r\033[K", end="", flush=True)
    return code, "".join(output)


def diagnose(command: "list[str]", output: str) -> str:
    """pip's failure in words that help, with its own last lines."""
    tail = "\n".join("    " + line for line in output.strip().splitlines()[-12:])
    version = "{}.{}".format(*sys.version_info[:2])
    if "No space left" in output:
        advice = f"the disk is full: about 600 MB are needed at {ROOT} and in the temporary folder."
    elif "THESE PACKAGES DO NOT MATCH THE HASHES" in output:
        advice = (
            "a package differs from what requirements.lock pins. Find out which index served it before going "
            "on, empty pip's cache (pip cache purge), then make again."
        )
    elif UNTRUSTED in output:
        advice = (
            "the package index shows a certificate of an authority that this machine does not know, as a "
            "proxy that reads along does. Set PIP_CERT to a file with that authority's certificate, then "
            "make again."
        )
    elif TRANSIENT.search(output):
        proxies = [name for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY") if os.environ.get(name)]
        advice = (
            "the package index did not answer after {} attempts (proxy: {}). Behind a proxy set HTTPS_PROXY, "
            "with a mirror set PIP_INDEX_URL; then make again."
        ).format(ATTEMPTS, " ".join(proxies) or "none set")
    elif "No matching distribution" in output or "Could not find a version" in output:
        advice = (
            f"a package has no ready-made wheel for Python {version} on {os.uname().machine}. Python 3.11 on "
            "Linux x86_64 has all; name another interpreter: make PYTHON=/path/to/python3.11"
        )
    else:
        advice = "pip failed; its last words are below."
    return f"{advice}\n{tail}\n    (command: {' '.join(map(shlex.quote, command))})"


def leave_only_locked(pip: "list[str]") -> None:
    """Uninstall what an earlier lock file brought and this one does not."""
    listed = run([*pip, "list", "--format=json"])
    with contextlib.suppress(ValueError, KeyError):
        names = {name_of(entry["name"]) for entry in json.loads(listed.stdout.splitlines()[0])}
        locked = {name_of(n) for n in re.findall(r"^([A-Za-z0-9][\w.-]*)==", LOCK.read_text(), re.MULTILINE)}
        extra = sorted(names - locked - {"pip", "dra-sharing-affinity"})
        if extra:
            run([*pip, "uninstall", "--yes", *extra])


def name_of(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


# -------------------- main


def bootstrap() -> None:
    goal = wanted()
    if found() == goal:
        return
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "bootstrap.lock").open("w") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another one is at work in this clone, waiting for it")
            fcntl.flock(guard, fcntl.LOCK_EX)
        have = found()
        if have == goal:
            return
        build(have, goal)


def build(have: "dict[str, str]", goal: "dict[str, str]") -> None:
    started = time.monotonic()
    same_python = all(have.get(key) == goal[key] for key in ("interpreter", "version", "place"))
    STAMP.unlink(missing_ok=True)
    if not same_python:
        say(f"making .venv with {sys.executable} ({sys.version.split()[0]})")
        make_venv()
    pip = find_pip()
    if not same_python or have.get("lock") != goal["lock"]:
        flags = [
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--no-deps",
            "--no-compile",
            "--progress-bar",
            "off",
        ]
        install([*pip, "install", *flags, "-r", str(LOCK)], "packages", pinned())
        leave_only_locked(pip)
    here = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "-e", str(ROOT)]
    install([*pip, "install", *here], "this project")
    write_stamp(goal)
    say(f"ready in {time.monotonic() - started:.0f} s")


def main() -> int:
    problem = old_python()
    if problem:
        sys.stderr.write("bootstrap: " + problem + "\n")
        return 2
    try:
        bootstrap()
    except SetupError as error:
        sys.stderr.write(f"bootstrap: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"bootstrap: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nbootstrap: interrupted; the next call starts over\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
