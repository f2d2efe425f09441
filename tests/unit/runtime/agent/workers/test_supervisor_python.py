"""A worker, forked or by exec, is a fresh ``python -u script``: each script here runs under both and plain python."""

import json
import py_compile
import subprocess
import sys
import zipfile

import pytest
from supervisor_harness import Node

SCRIPTS = {
    "returns": "print('out'); import sys; print('err', file=sys.stderr)",
    "exit-number": "import sys; sys.exit(3)",
    "exit-large": "import sys; sys.exit(259)",
    "exit-text": "import sys; sys.exit('words')",
    "exit-none": "import sys; sys.exit(None)",
    "exit-true": "import sys; sys.exit(True)",
    "exit-hard": "import os; os._exit(5)",
    "raises": "def f():\n    raise ValueError('bad')\nf()",
    "raises-chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('no') from e",
    "syntax": "x = = 1",
    "interrupt": "raise KeyboardInterrupt",
    "exit-in-thread": "import threading, sys\nt = threading.Thread(target=sys.exit)\nt.start(); t.join(); print('on')",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "aborts": "import os, signal; signal.signal(signal.SIGABRT, signal.SIG_DFL); os.kill(os.getpid(), 6)",
    "threads-and-atexit": (
        "import atexit, threading, time\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "raise SystemExit(7)"
    ),
    "threads-after-raise": (
        "import atexit, threading, time\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
        "raise ValueError('bad')"
    ),
    "excepthook": (
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[2].tb_lineno)\nraise ValueError"
    ),
    "open-file": "f = open('left-open.txt', 'w'); f.write('kept')",
    "open-file-after-raise": "f = open('left-open.txt', 'w'); f.write('kept')\nraise ValueError",
    "main-module": (
        "import sys, pickle\n"
        "class A: pass\n"
        "m = sys.modules['__main__']\n"
        "print(pickle.loads(pickle.dumps(A())).__class__ is A, m.A is A, __name__, __file__, __package__, __spec__)\n"
        "print(sorted(n for n in vars(m) if n.startswith('__')), type(__loader__).__name__, __cached__, __doc__)"
    ),
    "process": (
        "import sys, os, signal\n"
        "print(sys.argv, sys.orig_argv, sys.path, sys.flags, os.getcwd(), os.environ.get('MARK'), sys.warnoptions)\n"
        "print([signal.getsignal(n) for n in (1, 2, 13, 15, 17, 25)], signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(os.getsid(0) == os.getpid(), sys.stdout.encoding, sys.stdout.write_through, sys.stdin.encoding)\n"
        "print(sorted(map(int, os.listdir('/proc/self/fd')))[:3], sys.getrecursionlimit(), os.umask(0), sys.excepthook)"
    ),
    "imports-neighbour": "import neighbour; print(neighbour.__file__)",
    "spawns": (
        "import multiprocessing as mp\n"
        "def f(x): return x * 2\n"
        "if __name__ == '__main__':\n"
        "    with mp.get_context('spawn').Pool(1) as pool: print(pool.map(f, [1, 2]))"
    ),
    "forks": "import os\nif os.fork() == 0:\n    os._exit(0)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
    "unbuffered": "import sys, os\nsys.stdout.write('a'); os.write(1, b'b'); sys.stdout.write('c'); os._exit(0)",
}


HOW: dict[str, dict[str, str]] = {"fork": {}, "exec": {"PYTHON_EXEC": sys.executable}}
"""How workers are started, by what is added to their environment."""


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_worker_does_what_python_does(root: Node, name: str, how: str) -> None:
    """Exit code, standard output, standard error and files are those of ``python -u script``."""
    script = root.script(SCRIPTS[name])
    root.script("", "neighbour.py")
    command = [sys.executable, "-u", script, "a", "b c"]
    plain = subprocess.run(
        command, cwd=root.root, env={**root.env, "MARK": "m"}, capture_output=True, text=True, start_new_session=True
    )
    kept = root.root / "left-open.txt"
    left = kept.read_text() if kept.exists() else None
    kept.unlink(missing_ok=True)
    worker = root.run(root.ended(root.launch(script, "a", "b c", env={"MARK": "m", **HOW[how]})))
    assert worker.how.startswith(how)
    assert worker.codes[0] == plain.returncode
    assert worker.stdout.splitlines() == plain.stdout.splitlines()
    assert worker.stderr == plain.stderr
    assert (kept.read_text() if kept.exists() else None) == left


MODULES = {
    "module": ("pkg.mod", "import sys; print(sys.argv, sys.path[0], __name__, __package__, __spec__.name); 1/0"),
    "package": ("pkg", ""),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", MODULES)
def test_a_module_does_what_python_does(root: Node, name: str, how: str) -> None:
    """A module or a package runs as under ``python -u -m``, frames of the traceback included."""
    module, source = MODULES[name]
    (root.root / "pkg").mkdir()
    root.script("", "pkg/__init__.py")
    root.script("import sys; print(sys.argv, __file__, sys.orig_argv); sys.exit(4)", "pkg/__main__.py")
    root.script(source, "pkg/mod.py")
    command = [sys.executable, "-u", "-m", module, "a"]
    plain = subprocess.run(command, cwd=root.root, env=root.env, capture_output=True, text=True)
    worker = root.run(root.ended(root.launch(module, "a", module=True, env=HOW[how])))
    assert (worker.codes[0], worker.stdout, worker.stderr) == (plain.returncode, plain.stdout, plain.stderr)


SAY = "import sys; print(sys.argv, sys.path[0], __name__, __file__, type(__loader__).__name__, __spec__ is None)"


@pytest.mark.parametrize("kind", ["folder", "archive.zip", "compiled.pyc"])
def test_scripts_that_are_not_source_files(root: Node, kind: str) -> None:
    """A directory, an archive and a compiled script run as under ``python -u``."""
    folder = root.root / "folder"
    folder.mkdir()
    main = folder / "__main__.py"
    main.write_text(SAY)
    with zipfile.ZipFile(root.root / "archive.zip", "w") as archive:
        archive.write(main, "__main__.py")
    py_compile.compile(str(main), str(root.root / "compiled.pyc"))
    plain = subprocess.run(
        [sys.executable, "-u", kind, "a"], cwd=root.root, env=root.env, capture_output=True, text=True
    )
    worker = root.run(root.ended(root.launch(kind, "a")))
    assert worker.how.startswith("exec: the script is ")
    assert (worker.codes[0], worker.stdout, worker.stderr) == (0, plain.stdout, plain.stderr)


def test_an_interpreter_that_has_no_ftcore_runs_the_script_plainly(root: Node) -> None:
    """``PYTHON_EXEC`` without ftcore's dependencies: the script runs, its steps are not counted."""
    other = root.root / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    other.chmod(0o755)
    worker = root.run(root.ended(root.launch(root.script(SAY), "a", env={"PYTHON_EXEC": str(other)})))
    assert worker.codes == (0,), worker.stderr
    assert worker.stdout.startswith("['script.py', 'a']")


@pytest.mark.parametrize("how", HOW)
def test_an_uncaught_exception_leaves_an_error_file(root: Node, how: str) -> None:
    """The error file has torchrun's format, and the call stack starts in the script."""
    script = root.script("def f():\n    raise ValueError('bad')\nf()")
    ended = root.run(root.ended(root.launch(script, env=HOW[how])))
    message = json.loads((ended.log_dir / "error.json").read_text())["message"]
    assert message["message"] == "ValueError: bad"
    assert message["extraInfo"]["py_callstack"] == ended.stderr
    assert message["extraInfo"]["timestamp"].isdigit()


def test_an_error_file_of_the_script_is_kept(root: Node) -> None:
    """A file written by ``@record`` or the script is not overwritten; one of an older incarnation is removed."""
    script = root.script("import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('mine'); raise ValueError")
    assert (root.run(root.ended(root.launch(script))).log_dir / "error.json").read_text() == "mine"
    launch = root.launch(root.script("pass", "good.py"))
    (root.root / "old.json").write_text("old")
    launch.envs[0]["TORCHELASTIC_ERROR_FILE"] = str(root.root / "old.json")  # type: ignore[index]
    root.run(root.ended(launch))
    assert not (root.root / "old.json").exists()
    assert root.supervisor.error_file(0) == str(root.root / "old.json")


def test_no_error_file_without_an_error(root: Node) -> None:
    """A script that exits with any code leaves no error file."""
    script = root.script("import sys; sys.exit(3)")
    assert not (root.run(root.ended(root.launch(script))).log_dir / "error.json").exists()


def test_a_crash_shows_its_stack(root: Node) -> None:
    """A segmentation fault ends with its signal, and the Python stack is on stderr, without those of other threads."""
    other = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    script = root.script(f"{other}def crash():\n    ctypes.string_at(0)\ncrash()")
    ended = root.run(root.ended(root.launch(script)))
    assert ended.codes == (-11,)
    assert "Segmentation fault" in ended.stderr
    assert "in crash" in ended.stderr and "Thread 0x" not in ended.stderr
