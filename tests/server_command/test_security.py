# SPDX-License-Identifier: Apache-2.0
"""`reverb_server` with TLS and tokens: what it checks, says, and reads again on SIGHUP."""

import contextlib
import re
import signal

import pytest

import reverb
from reverb import errors
from reverb.server_executable import security
from reverb.server_executable.settings import ConfigSource, Given, read_settings
from support.certificates import Certificates, Linked, TokensFile
from support.log_lines import messages
from support.programs import Program
from support.reverb_server import COMMAND, CONFIG
from support.waiting import DEADLINE_S, wait_until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(certificates):
    return certificates.good()


@pytest.fixture
def tokens(tmp_path):
    return TokensFile(tmp_path / "tokens")


@pytest.fixture
def ends(ends):
    """Runs the command with a config; returns its exit code, standard output and errors."""
    return lambda *arguments: ends(f"--config={CONFIG}", *arguments)


# --- Checks and lines of the log ------------------------------------------------------------------


def test_good_files_pass_the_check(ends, pair, certificates, tokens):
    tokens.add("learner", "sample")
    assert ends(
        "--check",
        f"--tls-cert={pair.cert}",
        f"--tls-key={pair.key}",
        f"--tls-client-ca={certificates.ca}",
        f"--tokens={tokens.path}",
    ) == (0, "--config is good: tables t\n", "")


def test_a_check_names_the_file_that_is_bad(ends, pair, tmp_path, certificates):
    other = certificates.good()
    empty = tmp_path / "empty"
    empty.touch()
    for cert, key, problem in (
        (tmp_path / "none.crt", pair.key, "none.crt"),
        (empty, pair.key, "empty"),
        (pair.cert, empty, "empty"),
        (pair.cert, pair.cert, str(pair.cert)),
        (pair.cert, other.key, str(other.key)),
    ):
        code, out, error = ends("--check", f"--tls-cert={cert}", f"--tls-key={key}")
        assert (code, out) == (2, "")
        (line,) = messages(error)
        assert line.startswith("ERROR server: flag --tls-cert: ")
        assert problem in line


def test_a_check_finds_all_problems_of_a_file_of_tokens(ends, tokens):
    token = tokens.add("learner", "sample")
    tokens.write("a  everything  *  sha256:00\nb\n")
    code, _, error = ends("--check", f"--tokens={tokens.path}", "--host=127.0.0.1")
    assert code == 2
    lines = messages(error)
    assert all(line.startswith("ERROR server: flag --tokens: ") for line in lines)
    assert {re.search(r"line (\d+)", line)[1] for line in lines} == {"3", "4"}
    assert token not in error


@pytest.mark.parametrize(
    ("host", "is_good"),
    [
        (None, False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("::", False),
        ("127.0.0.1", True),
        ("127.5.5.5", True),
        ("::1", True),
        # Only a server knows where it leads.
        ("localhost", True),
    ],
)
def test_tokens_without_tls_stay_on_this_machine(ends, tokens, host, is_good):
    tokens.add("learner", "sample")
    options = ["--check", f"--tokens={tokens.path}"]
    options += [] if host is None else [f"--host={host}"]
    code, _, error = ends(*options)
    assert code == (0 if is_good else 2)
    if not is_good:
        assert messages(error) == [
            "ERROR server: flag --tokens: others could read the tokens on the network: give "
            "--tls-cert and --tls-key, or --host 127.0.0.1, or --insecure-tokens"
        ]
    assert ends(*options, "--insecure-tokens")[0] == 0


def test_what_is_printed_has_paths_and_no_token(ends, tokens, pair):
    token = tokens.add("learner", "sample")
    code, out, error = ends(
        "--print-config",
        f"--tokens={tokens.path}",
        f"--tls-cert={pair.cert}",
        f"--tls-key={pair.key}",
    )
    assert (code, error) == (0, "")
    assert f'tokens: "{tokens.path}"  # flag --tokens' in out
    assert f'key: "{pair.key}"  # flag --tls-key' in out
    assert token not in out
    assert "PRIVATE" not in out


def test_a_server_says_how_it_is_protected(tokens):
    def text(**flags):
        return security.security_text(
            read_settings(Given(ConfigSource("c", text=CONFIG), flags, {}))
        )

    tokens.add("a", "sample")
    tokens.add("b", "sample")
    tls = {"tls_cert": "c", "tls_key": "k"}
    assert text() == "without TLS"
    assert text(**tls) == "with TLS"
    assert text(**tls, tls_client_ca="a") == "with TLS and certificates of clients"
    assert text(tokens=str(tokens.path)) == "without TLS, tokens: 2"
    assert text(**tls, tokens=str(tokens.path)) == "with TLS, tokens: 2"


# --- A server in a process of its own -------------------------------------------------------------


class Running:
    """A server in a process of its own, and its clients."""

    def __init__(self, program, certificates):
        self.program = program
        ready = program.line()
        port = re.search(r" is ready on port (\d+) of 127.0.0.1: tables t$", ready)[1]
        program.wait_for_error(" ready on port ")
        self.address = f"grpcs://127.0.0.1:{port}"
        self._tls = reverb.ClientTls(ca=certificates.ca)

    def client(self, **options):
        options = {"tls": self._tls, "connect_timeout_s": DEADLINE_S} | options
        return reverb.Client(self.address, **options)

    def hang_up(self, text):
        """Sends SIGHUP and waits until the log says so; returns the lines since then."""
        count = len(self.program.errors)
        self.program.signal(signal.SIGHUP)
        wait_until(lambda: re.search(rf"{re.escape(text)}.*\n", self.program.errors[count:]))
        return messages(self.program.errors[count:])


@pytest.fixture
def files(tmp_path, pair):
    return Linked(tmp_path / "secret", pair)


@pytest.fixture
def run(certificates, files, tokens):
    """Starts a server with TLS and tokens: `with run() as running`."""

    @contextlib.contextmanager
    def run(*options, config=(f"--config={CONFIG}",)):
        secured = [f"--tls-cert={files.cert}", f"--tls-key={files.key}", f"--tokens={tokens.path}"]
        with Program(COMMAND, *config, "--host=127.0.0.1", *secured, *options) as program:
            yield Running(program, certificates)

    return run


def test_the_start_is_told_and_the_stop_is_as_ever(run, tokens):
    token = tokens.add("all", "sample,insert")
    tokens.add("other", "sample")
    with run("--http-port=0", "--http-tls") as running:
        running.client(token=token).insert([1], {"t": 1.0})
        running.program.stop()
        lines = messages(running.program.errors)
        assert any(", with TLS, tokens: 2; the page, " in line for line in lines)
        assert any("https://127.0.0.1:" in line for line in lines)
        assert token not in running.program.errors


@pytest.mark.parametrize(
    "options",
    [["--tls-cert=/no/such.crt", "--tls-key=/no/such.key"], ["--tokens=/no/such"]],
    ids=["tls", "tokens"],
)
def test_a_server_with_bad_files_does_not_start(options):
    with Program(COMMAND, f"--config={CONFIG}", "--host=127.0.0.1", *options) as program:
        assert program.ended() == 1
        assert "ERROR server: cannot start: " in program.errors
        assert "/no/such" in program.errors


def test_a_key_that_others_can_read_is_a_warning(run, files, tokens):
    tokens.add("learner", "sample")
    tokens.path.chmod(0o644)
    files.key.chmod(0o644)
    with run() as running:
        lines = [it for it in messages(running.program.errors) if it.startswith("WARN ")]
        for path in (files.key, tokens.path):
            (line,) = [it for it in lines if str(path) in it]
            assert "read" in line
        files.key.chmod(0o600)
        assert len(lines) == 2


READ = "read certificates and tokens again"
REFUSED = "the earlier content of the bad files stays in force"


def test_without_a_config_file_a_hangup_reloads_tokens(run, tokens):
    old = tokens.add("learner", "sample,insert")
    with run() as running:
        client = running.client(token=old)
        client.insert([1], {"t": 1.0})
        new = tokens.add("learner", "sample,insert")
        running.hang_up(READ)
        running.client(token=new).server_info()
        client.server_info()
        tokens.remove(old)
        running.hang_up(READ)
        with pytest.raises(errors.UnauthenticatedError):
            running.client(token=old).server_info()
        *_, last = running.hang_up(READ)
        assert last == f"INFO server: {READ}: nothing is different"
        # The server may have been first: it looks by itself, too.
        assert f": tokens: those in {tokens.path} are in force\n" in running.program.errors


def test_a_hangup_takes_a_new_certificate(run, tokens, files, certificates):
    token = tokens.add("learner", "sample,insert")
    with run() as running:
        client = running.client(token=token)
        client.insert([1], {"t": 1.0})
        files.swap(certificates.of_other_ca())
        running.hang_up(READ)
        # Open connections stay; new ones use the new certificate.
        assert client.server_info()["t"].current_size == 1
        with pytest.raises(errors.UnavailableError):
            running.client(token=token).server_info()
        tls = reverb.ClientTls(ca=certificates.other_ca)
        assert running.client(token=token, tls=tls).server_info()["t"].current_size == 1


def break_tokens(files, tokens, certificates):
    tokens.write("someone  everything  *  sha256:0\n")


def remove_tokens(files, tokens, certificates):
    tokens.path.unlink()


def empty_tokens(files, tokens, certificates):
    tokens.path.write_text("")


def make_tokens_a_directory(files, tokens, certificates):
    tokens.path.unlink()
    tokens.path.mkdir()


def put_a_token_for_its_hash(files, tokens, certificates):
    token = next(iter(tokens._lines))
    tokens.write(f"someone  sample  *  {token}\n")


def break_the_certificate(files, tokens, certificates):
    files.cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def cut_the_certificate(files, tokens, certificates):
    files.cert.write_bytes(files.cert.read_bytes()[:300])


def empty_the_key(files, tokens, certificates):
    files.key.write_bytes(b"")


def exchange_the_key(files, tokens, certificates):
    files.key.write_bytes(certificates.good().key.read_bytes())


def remove_the_key(files, tokens, certificates):
    files.key.resolve().unlink()


# And what the log must name.
TOKENS_FAULTS = {
    break_tokens: "line 3",
    remove_tokens: "tokens",
    empty_tokens: "tokens",
    make_tokens_a_directory: "tokens",
    put_a_token_for_its_hash: "line 3",
}
TLS_FAULTS = {
    break_the_certificate: "tls.crt",
    cut_the_certificate: "tls.crt",
    empty_the_key: "tls.key",
    exchange_the_key: "tls.key",
    remove_the_key: "tls.key",
}


@pytest.mark.parametrize("fault", TOKENS_FAULTS, ids=lambda fault: fault.__name__)
def test_bad_tokens_are_named_and_the_old_ones_stay_in_force(
    run, files, tokens, certificates, fault
):
    token = tokens.add("learner", "sample,insert")
    with run() as running:
        client = running.client(token=token)
        client.insert([1], {"t": 1.0})
        fault(files, tokens, certificates)
        files.swap(certificates.of_other_ca())
        refused = running.hang_up(REFUSED)
        assert any(TOKENS_FAULTS[fault] in line for line in refused[:-1])
        assert refused[-1] == f"ERROR server: {REFUSED}"
        assert token not in running.program.errors
        client.insert([1], {"t": 1.0})
        # The certificate is good, and new.
        tls = reverb.ClientTls(ca=certificates.other_ca)
        assert running.client(token=token, tls=tls).server_info()["t"].current_size == 2
        # And back.
        if tokens.path.is_dir():
            tokens.path.rmdir()
        new = tokens.add("new", "sample")
        running.hang_up(READ)
        assert running.client(token=new, tls=tls).server_info()["t"].current_size == 2


@pytest.mark.parametrize("fault", TLS_FAULTS, ids=lambda fault: fault.__name__)
def test_a_bad_certificate_is_named_and_the_old_one_stays_in_use(
    run, files, tokens, certificates, fault
):
    token = tokens.add("learner", "sample,insert")
    with run() as running:
        client = running.client(token=token)
        client.insert([1], {"t": 1.0})
        new = tokens.add("new", "sample")
        fault(files, tokens, certificates)
        refused = running.hang_up(REFUSED)
        assert any(TLS_FAULTS[fault] in line for line in refused[:-1])
        assert refused[-1] == f"ERROR server: {REFUSED}"
        client.insert([1], {"t": 1.0})
        # New connections meet the old certificate, and new tokens.
        assert running.client(token=new).server_info()["t"].current_size == 2
        # And back.
        for path in (files.cert, files.key):
            path.unlink(missing_ok=True)
            path.symlink_to(f"data/{path.name}")
        files.swap(certificates.of_other_ca())
        running.hang_up(READ)
        tls = reverb.ClientTls(ca=certificates.other_ca)
        assert running.client(token=token, tls=tls).server_info()["t"].current_size == 2


def test_a_bad_config_does_not_keep_tokens_from_being_read(run, tokens, path):
    old = tokens.add("learner", "sample")
    with run(config=(f"--config-file={path}",)) as running:
        path.write_text(CONFIG.replace("20", "0"))
        new = tokens.add("learner", "sample")
        lines = running.hang_up(READ)
        assert f"ERROR server: not reloaded: {path} has 1 problem; nothing has changed" in lines
        assert running.client(token=new).server_info()["t"].max_size == 20
        # And the other way round.
        path.write_text(CONFIG.replace("20", "30"))
        tokens.write("bad")
        lines = running.hang_up(REFUSED)
        assert f"INFO server: reloaded {path}: table t: max_size 20 -> 30" in lines
        assert running.client(token=old).server_info()["t"].max_size == 30


def test_another_path_needs_a_restart(tokens, tmp_path, pair):
    path = tmp_path / "server.textproto"
    tokens.add("learner", "sample")

    def config(tokens_path):
        tls = f'tls {{ cert: "{pair.cert}" key: "{pair.key}" }}'
        return f'{CONFIG}server {{ {tls}\n tokens: "{tokens_path}" }}'

    path.write_text(config(tokens.path))
    with Program(COMMAND, f"--config-file={path}", "--host=127.0.0.1") as program:
        program.line()
        path.write_text(config("/other"))
        program.signal(signal.SIGHUP)
        program.wait_for_error(f"{READ}: nothing is different\n")
        assert messages(program.errors)[-3:] == [
            f"ERROR server: {path}, line 10: server.tokens '{tokens.path}' -> '/other' needs a "
            "restart",
            f"ERROR server: not reloaded: {path} has 1 problem; nothing has changed",
            f"INFO server: {READ}: nothing is different",
        ]
