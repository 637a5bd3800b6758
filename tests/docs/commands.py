"""commands.py KIND ROOT WORK FOLDER...: runs the commands of README.md, docs/ and the programs' READMEs with the folders' programs.

A line "$ …" of a block is a command and what follows it its output, word for word; a line "…" stands for any lines, and "…"
in a line for any words. A page's blocks of one kind run in one folder, in which examples/ is the repository's.

  ```console           run with every test
  ```console nightly   what takes longer
  ```console training  minutes of training, at night: numbers may be others, lines of progress are left out, and ^C is pressed when
                       the first step is done. Where the page says "step 600 has a `validation_loss` below 5.3", so it is.
  ```sh                a script for machines that are not here

KIND `stand_ins` runs all but the first kind, and the commands within sentences, with stand-ins for programs and launchers
(stand_in.py), which refuse what the real ones would. A command in a block of another kind is an error.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

KIND, ROOT, WORK = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
FOLDERS = sys.argv[4:]
HERE = pathlib.Path(__file__).parent

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", ROOT / "tests/README.md",
         *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("examples/*/README.md"))]
LAUNCHERS = ["mpiexec", "mpirun", "srun", "sbatch"]
TOOLS = ["apt-get", "cmake", "ctest", "doxygen", "python3", "scontrol"]


def programs_in(folder):
    """A file or a folder each."""
    return {path.stem for path in folder.glob("*.cpp")} | {path.parent.name for path in folder.glob("*/main.cpp")}


PROGRAMS = {"autopar"} | programs_in(ROOT / "examples")
BENCHMARKS = programs_in(ROOT / "benchmarks")
SCRIPTS = {path.name for path in ROOT.glob("benchmarks/*/*.[sp][hy]")}
# Of the reader, or of another command.
READERS_PROGRAMS = ["train", "tutorial"]
READERS_FILES = ["hosts", "bert.json", "bert-large.json", "net.json", "profile.json", "plan.json",
                 "other.json", "cluster.toml", "run/vocabulary.txt", "data/vocab.txt", "resnet50.safetensors"]
NO_COMMANDS = ["autopar does not know how it treats samples",  # a message
               "mpirun -np 2 python tutorial.py"]  # RaNNC's
failures = []


def fail(page, text):
    failures.append(f"{page.relative_to(ROOT)}: {text}")


def blocks(page):
    """(language, lines) of each ``` block."""
    for info, text in re.findall(r"^```([^\n]*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        yield info, text.splitlines()


def commands(lines):
    """(command, lines of output) of a console block; \\ at an end goes on."""
    found = []
    goes_on = False
    for line in lines:
        if goes_on:
            found[-1][0] += "\n" + line
        elif line.startswith("$ "):
            found.append([line[2:], []])
        elif found:
            found[-1][1].append(line)
        goes_on = (goes_on or line.startswith("$ ")) and line.endswith("\\")
    return found


def folder_of(page):
    """A fresh one for the page's commands."""
    folder = WORK / KIND / page.relative_to(ROOT)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


# ---------------------------------------------------------------- run and compare


def simple(line):
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "N", line)


def pattern_of(shown):
    lines = ["(?:.*\n)*" if line in ("…", "...") else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in shown]
    return "".join(lines)


def difference(shown, output):
    """What is shown and not said, or said and not shown."""
    text = "".join(line + "\n" for line in output)
    if re.fullmatch(pattern_of(shown), text):
        return None
    for count in range(1, len(shown) + 1):
        if not re.match(pattern_of(shown[:count]), text):
            return f"does not say\n  {shown[count - 1]}\nbut\n{text}"
    return f"says more than is shown:\n{text}"


def interrupt_when_it_steps(process, folder, command):
    metrics = folder / re.search(r"--out (\S+)", command)[1] / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.1)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)


def run(command, shown, folder, page, status):
    """Its status."""
    is_interrupted = "^C" in shown
    with open(folder / "stdout", "w") as stdout, open(folder / "stderr", "w") as stderr:
        script = f"(exit {status})\n{'exec ' if is_interrupted else ''}{command}"
        errors = subprocess.STDOUT if KIND == "training" else stderr
        process = subprocess.Popen(["bash", "-c", script], cwd=folder, stdout=stdout, stderr=errors)
        if is_interrupted:
            interrupt_when_it_steps(process, folder, command)
        status = process.wait()
    output = (folder / "stdout").read_text().rstrip("\n").splitlines()
    if status != (130 if is_interrupted else 0):
        fail(page, f"'{command}' ended with {status}:\n" + "\n".join(output) + (folder / "stderr").read_text())
        return status
    if KIND == "training":
        shown, output = ([simple(line) for line in lines if not line.startswith("[")] for lines in (shown, output))
        shown = ["…" if line == "^C" else line for line in shown]
    if wrong := difference(shown, output):
        fail(page, f"'{command}' {wrong}")
    return status


def require_claims(page, folder):
    """Of values at steps, of the run in run/."""
    claims = re.findall(r"(?i)step (\d+) has a\s+`(\w+)`\s+(below|above)\s+([\d.]+\d)", page.read_text())
    if not claims:
        fail(page, "does not claim what its training reaches")
    metrics = folder / "run/metrics.jsonl"
    text = metrics.read_text() if metrics.exists() else ""
    for step, key, side, bound in claims:
        lines = map(json.loads, text.splitlines())
        values = [line[key] for line in lines if line["step"] == int(step) and key in line]
        print(f"{page.relative_to(ROOT)}: {key} of step {step} is {values}, {side} {bound}")
        if not values or (values[-1] < float(bound)) != (side == "below"):
            fail(page, f"{key} of step {step} is {values}, not {side} {bound}")


def lacks(lines):
    """A program that the commands need and this build has not."""
    words = {word for command, _ in commands(lines) for word in command.split()}
    return [name for name in PROGRAMS & words if not any((pathlib.Path(folder) / name).is_file() for folder in FOLDERS)]


def run_all():
    os.environ["PATH"] = ":".join([*FOLDERS, os.environ["PATH"]])
    wanted = "console" if KIND == "console" else f"console {KIND}"
    count = 0
    for page in PAGES:
        folder = None
        status = 0
        for info, lines in blocks(page):
            if info != wanted:
                continue
            if missing := lacks(lines):
                print(f"{page.relative_to(ROOT)}: skipped, as there is no {missing[0]}")
                continue
            folder = folder or folder_of(page)
            for command, shown in commands(lines):
                status = run(command, shown, folder, page, status)
                count += 1
        if folder and KIND == "training":
            require_claims(page, folder)
    return count


# ---------------------------------------------------------------- with stand-ins


def inline_commands(text):
    """Spans of `code` that are a command with arguments."""
    known = [*LAUNCHERS, *TOOLS, "bash", *PROGRAMS, *BENCHMARKS, *SCRIPTS, *(f"./{name}" for name in READERS_PROGRAMS)]
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`]+)`", text):
        command = " ".join(span.replace("…", " MORE ").replace("|", ",").split())
        first = re.sub(r"^([A-Z_]+=\S* )+", "", command).split(" ")[0]
        is_known = first in known or re.fullmatch(r"(benchmarks|tests|\w+)/\S+", first)
        if is_known and command != first and command not in NO_COMMANDS:
            yield command


def stand_in(path, name):
    """A program there that refuses what the one of this name would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f'#!/bin/bash\nexec "{sys.executable}" -IS "{HERE}/stand_in.py" {name} "$@"\n')
    path.chmod(0o755)


def sandbox(page):
    """A folder with what the repository has, where stand-ins are the programs, and scripts that would run for long."""
    folder = folder_of(page)
    for name in [*LAUNCHERS, *TOOLS, *PROGRAMS, *BENCHMARKS, *SCRIPTS]:
        stand_in(folder / "bin" / name, name)
    for top in ("benchmarks", "tests", "cmake"):
        for path in (ROOT / top).rglob("*.[sp][hy]"):
            stand_in(folder / path.relative_to(ROOT), path.name)
            if page.parent == ROOT / top:
                stand_in(folder / path.relative_to(ROOT / top), path.name)
    for name in BENCHMARKS:
        if not (folder / "benchmarks" / name).is_dir():
            stand_in(folder / "benchmarks" / name, name)
    for name in ("test_torch", "numerics"):
        stand_in(folder / "tests" / name, name)
    if not (folder / "docs").exists():  # of tests/ there are stand-ins
        (folder / "docs").symlink_to(ROOT / "docs")
    if page.parent.parent.name == "examples":
        for path in page.parent.iterdir():
            (folder / path.name).symlink_to(path)
    for name in READERS_PROGRAMS:
        if not (folder / name).is_dir():
            stand_in(folder / name, "./program")
    for name in READERS_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def scripts_of(page):
    yield from inline_commands(page.read_text())
    is_command = re.compile("(" + "|".join(["\\$", "bash", *LAUNCHERS, *TOOLS, *PROGRAMS]) + ") ")
    for info, lines in blocks(page):
        if info == "sh":
            yield "set -e\n" + "\n".join(lines)
        elif info in ("console nightly", "console training"):
            yield from (command for command, _ in commands(lines))
        elif info != "console" and any(is_command.match(line) for line in lines):
            fail(page, f"a block ```{info} has commands; name it console or sh:\n" + "\n".join(lines))


def run_with_stand_ins():
    count = 0
    shutil.rmtree(WORK / "stand_ins", ignore_errors=True)
    (WORK / "stand_ins").mkdir(parents=True)
    errors = WORK / "stand_ins/errors"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOPAR_")}
    environment.update(STAND_IN_ROOT=str(ROOT), STAND_IN_FOLDERS=":".join(FOLDERS), STAND_IN_ERRORS=str(errors),
                       STAND_IN_PATH=os.environ["PATH"])
    for page in PAGES:
        folder = sandbox(page)
        environment["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
        for script in scripts_of(page):
            count += 1
            errors.write_text("")
            done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode != 0 or errors.read_text():
                fail(page, f"'{script}' ended with {done.returncode}: {errors.read_text() or done.stderr}")
    return count


count = run_with_stand_ins() if KIND == "stand_ins" else run_all()
for failure in failures:
    print(failure)
print(f"{count} commands of the documentation, {len(failures)} of which are wrong")
sys.exit(0 if count and not failures else 1)
