"""Whatever goes wrong is one line on stderr and an exit code; a traceback comes with --debug alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from paceline.errors import CapacityError, CheckpointError, ConfigError, explained

GENERATE = ("generate", "folder", "--prompt", "a")


def one_line(result, code: int, *parts: str) -> None:
    assert result.code == code
    assert result.out == ""
    assert len(result.err.splitlines()) == 1, result.err
    assert result.err.startswith("paceline: ")
    for part in parts:
        assert part in result.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("generate", "folder"), "--prompt"),
        (("generate", "folder", "--prompt", "a", "--prompts", "b"), "b"),
        (("generate", "folder", "--prompts", "/nowhere.jsonl"), "/nowhere.jsonl"),
        (("generate", "--prompt", "a"), "MODEL"),
        (("frobnicate",), "frobnicate"),
        ((*GENERATE, "--dtype", "float16"), "float16"),
        ((*GENERATE, "--max-tokens", "many"), "many"),
        ((*GENERATE, "--max-tokens", "-1"), "max_tokens"),
        ((*GENERATE, "--temperature", "nan"), "temperature"),
        ((*GENERATE, "--top-p", "1.5"), "top_p"),
        ((*GENERATE, "--seed", str(2**64)), "seed"),
        ((*GENERATE, "--sampling", "{"), "--sampling"),
        ((*GENERATE, "--sampling", "[1]"), "--sampling"),
        ((*GENERATE, "--sampling", "[" * 100_000), "--sampling"),
        ((*GENERATE, "--sampling", '{"seed": ' + "9" * 5000 + "}"), "--sampling"),
        ((*GENERATE, "--sampling", '{"temprature": 1}'), "temperature"),
        ((*GENERATE, "--sampling", '{"n": 2, "n": 3}'), "'n' stands twice"),
        ((*GENERATE, "--speculative-config", "nope"), "--speculative-config"),
        ((*GENERATE, "--speculative-config", '{"method": "eagle"}'), "dflash"),
        ((*GENERATE, "--speculative-config", '{"method": "mtp", "numspec": 1}'), "numspec"),
        ((*GENERATE, "--frobnicate"), "--frobnicate"),
        (("generate", "folder", "--prompt", ""), "prompt"),
        (("generate", "folder", "--prompt", "\udcff"), "--prompt is not UTF-8"),
        (("demo", "--prompt", "\udcff"), "--prompt is not UTF-8"),
        (("verify", "folder"), "--speculative-config"),
        (("demo", "--max-tokens", "1"), "--max-tokens"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(paceline, arguments, part):
    one_line(paceline(*arguments), 2, part)


def test_bad_speculative_config_is_found_before_the_model_is_loaded(paceline, script):
    paceline(*GENERATE, "--speculative-config", '{"method": "dflash"}')
    assert script.opened == []


@pytest.mark.parametrize("error", [CheckpointError("shard 2 is truncated"), CapacityError("no room\nat all")])
def test_paceline_errors_are_one_line_and_code_2(paceline, script, error):
    script.raises = error
    one_line(paceline(*GENERATE), 2, *str(error).split("\n"))


def test_operating_system_errors_name_the_file(paceline, script):
    script.raises = FileNotFoundError(2, "No such file or directory", "weights")
    one_line(paceline(*GENERATE), 2, "weights: No such file or directory")


def test_interruption_is_130(paceline, script):
    script.raises = KeyboardInterrupt()
    result = paceline(*GENERATE)
    assert result.code == 130 and result.err.strip().endswith("interrupted")


def test_our_own_faults_say_so(paceline, script):
    script.raises = AssertionError("lengths moved")
    one_line(paceline(*GENERATE), 70, "internal error", "lengths moved", "--debug")


def test_debug_shows_the_traceback(paceline, script):
    script.raises = CheckpointError("shard 2 is truncated")
    result = paceline(*GENERATE, "--debug")
    assert result.code == 2
    assert "Traceback" in result.err and result.err.splitlines()[-1] == "paceline: shard 2 is truncated"


def test_empty_file_of_prompts(paceline, lines):
    one_line(paceline("generate", "folder", "--prompts", lines("", "")), 2, "holds no prompt")


def test_help_and_version_are_code_0(paceline):
    for arguments in (("--help",), ("generate", "--help"), ("--version",)):
        result = paceline(*arguments)
        assert result.code == 0 and "paceline" in result.out


def test_no_command_shows_help_and_is_code_2(paceline):
    result = paceline()
    assert result.code == 2 and "Commands:" in result.out + result.err


def test_a_reader_that_leaves_early_is_no_error():
    program = (
        "import sys\n"
        "from paceline.cli import main, generate\n"
        "def flood(*_): \n    while True: print('x' * 1000)\n"
        "generate._entries = flood\n"
        "sys.exit(main.main(['generate', 'folder', '--prompt', 'a']))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_control_c_in_a_real_process_is_130():
    program = "from paceline.cli.main import run; print('ready', flush=True); run()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "generate", "folder", "--prompts", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.2)  # it waits for stdin by then; earlier would do as well
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "paceline: interrupted\n")


def test_control_c_while_modules_load_is_130():
    program = (
        "import sys\n"
        "from paceline.cli.launch import run\n"
        "class Impatient:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'pydantic': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "run()\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "paceline: interrupted\n")


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [
        ("sys.stdout", ["--version"], 0),
        ("sys.stdin", ["generate", "folder", "--prompts", "-"], 2),
        ("sys.stderr", ["generate", "/nowhere/at/all", "--prompt", "a"], 2),
    ],
)
def test_a_closed_stream_is_no_fault(closed, arguments, code):
    program = (
        f"import sys; from paceline.cli.main import run; {closed} = None; sys.argv[1:] = {arguments}; run()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr and "internal error" not in result.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("--count: at least 1"), "--count: at least 1"),
        (FileNotFoundError(2, "No such file", "a.jsonl"), "a.jsonl: No such file"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (OSError("out of luck"), "OSError('out of luck')"),
    ],
)
def test_a_program_of_its_own_explains_as_the_commands_do(error, line, capsys):
    @explained
    def main() -> None:
        raise error

    assert main() == 2
    assert capsys.readouterr().err == f"paceline: {line}\n"


def test_a_program_that_is_done_says_0_and_a_fault_of_ours_stays_one():
    assert explained(lambda: None)() == 0
    assert explained(lambda: 3)() == 3
    with pytest.raises(AssertionError):
        explained(lambda: (_ for _ in ()).throw(AssertionError))()


def test_a_program_whose_reader_has_left_is_done():
    program = (
        "import sys\nfrom paceline.errors import explained\n"
        "@explained\ndef main():\n    for i in range(100_000): print(i)\n"
        "sys.exit(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout and running.stdout.readline() == "0\n"
        running.stdout.close()
        assert (running.wait(30), running.stderr and running.stderr.read()) == (0, "")
