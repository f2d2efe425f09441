"""Secrets in text that is shared."""

import json
import re

import pytest

from ftcore.redaction import HIDDEN, KEY_LINES_MAX, OVERLAP_CHARS, PATTERNS, Redactor, redacted

PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nabcdefSECRETKEYDATA\n-----END PRIVATE KEY-----\n"

SECRETS = {
    "private key on one line": (
        PEM.replace("\n", "\\n"),
        "\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\\nabcdefSECRETKEYDATA\\n",
    ),
    "password in a URL": ("etcd://root:s3cr3t@host:2379/jobs", "s3cr3t"),
    "user name in a URL that may be a token": (
        "git clone https://abcdefghij0123456789@host/x.git",
        "abcdefghij0123456789",
    ),
    "parameter of a URL": ("GET /data?part=1&X-Amz-Signature=5f2e9c&n=2", "5f2e9c"),
    "authorization header": ("{'Authorization': 'Basic Zm9vOmJhcg=='}", "Zm9vOmJhcg=="),
    "bearer token": ("sent bearer abcdefghijkl.mn", "abcdefghijkl.mn"),
    "cookie header": ("Set-Cookie: session=abc", "session=abc"),
    "AWS access key": ("key AKIAIOSFODNN7EXAMPLE is wrong", "AKIAIOSFODNN7EXAMPLE"),
    "Hugging Face token": ("login with hf_abcdefghijklmnopqrstuvwx", "hf_abcdefghijklmnopqrstuvwx"),
    "GitHub token": ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
    "GitLab token": ("glpat-abcdefghij0123456789", "glpat-abcdefghij0123456789"),
    "Slack token": ("xoxb-123456789012-abcdef", "xoxb-123456789012-abcdef"),
    "Slack webhook": ("https://hooks.slack.com/services/T000/B000/XXXX", "T000/B000/XXXX"),
    "key of an API": ("sk-abcdefghijklmnopqrstuvwx", "sk-abcdefghijklmnopqrstuvwx"),
    "Google API key": ("AIzaabcdefghijklmnopqrstuvwxyz012345678", "AIzaabcdefghijklmnopqrstuvwxyz012345678"),
    "JSON web token": ("jwt eyJhbGciOiJIUzI1.eyJzdWIiOiIx.SflKxwRJSM", "eyJhbGciOiJIUzI1.eyJzdWIiOiIx.SflKxwRJSM"),
    "named password": ("DB_PASSWORD='123'", "123"),
    "named value": ('os.environ["WANDB_API_KEY"] = "0123456789abcdef"', "0123456789abcdef"),
    "short name of a password": ("MYSQL_PWD=hunter2", "hunter2"),
    "value of an option": ("train.py --hub-token abc12345 --lr 3", "abc12345"),
    "password as an option": ("--db-password=abc --lr 3", "abc"),
    "password of curl": ("curl -u me:hunter2 https://host", "hunter2"),
    "login of a netrc file": ("machine api.wandb.ai login user password hunter", "hunter"),
    "password of a netrc file": ("  password 0123456789abcdef\n", "0123456789abcdef"),
}


@pytest.mark.parametrize("name", [pattern.name for pattern in PATTERNS])
def test_each_kind_of_secret(name):
    """Each entry of the table has an example; its secret is replaced, and the text around it stays."""
    text, secret = SECRETS[name]
    before, _, after = text.partition(secret)
    found = redacted(text)
    assert secret not in found and HIDDEN in found
    assert found.startswith(before[: len(before) // 2]) and found.endswith(after[len(after) // 2 :])
    own = next(pattern for pattern in PATTERNS if pattern.name == name)
    assert own.expression.search(text), "its own pattern finds it, not only another one"
    assert redacted(found) == found


@pytest.mark.parametrize(
    "text",
    [
        "step 100, loss: 2.345, lr=0.0001, tokens/s: 231.5, tokens: 12345678, token=151643, max_tokens=4096",
        "eos_token: <|endoftext|> pad_token_id=0 password=None token=None",
        "{'eos_token': '<|endoftext|>', 'pad_token': '[PAD]', \"bos_token\": \"<s>\", 'token': '12345678'}",
        "PWD=/root/train OLDPWD=/root; python -u train.py; docker run -u 1000:1000 image; invalid password",
        "no '-----BEGIN PRIVATE KEY-----' line in key.pem",
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "connect to tcp://10.0.0.1:29500 master_addr=node1:29500",
        "2026-11-25 18:05:27,123 rank 3: NCCL WARN socketProgress: Connection closed by remote peer",
    ],
)
def test_training_output_stays(text):
    """Numbers and names that only look like secrets are not replaced."""
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (r'env: "{\"WANDB_API_KEY\": \"abcdef0123456789\"}"', "abcdef0123456789"),
        (r'"{\"password\": \"a b c\", \"x\": 1}"', "a b c"),
        ("Command '['train.py', '--hf-token', 'abcdefgh12345']' returned non-zero exit status 1.", "abcdefgh12345"),
        ("['curl', '-u', 'me:hunter2', 'https://host']", "hunter2"),
        ("AccountName=x;AccountKey=abcdEFGH1234567890==", "abcdEFGH1234567890=="),
        ('password: "my secret pass phrase" is wrong', "my secret pass phrase"),
        (r"password='it\'s me', user='ann'", r"it\'s me"),
        ("api_key = 'abc 1234567'", "abc 1234567"),
        ("redis://:pa@ss@host/0", "pa@ss"),
        ("\u0130\u0130 HF_TOKEN=abcdef12", "abcdef12"),
    ],
)
def test_other_forms(text, secret):
    """JSON in JSON, lists of arguments, quoted values with spaces; the text around the secret stays."""
    before, _, after = text.partition(secret)
    assert redacted(text) == f"{before}{HIDDEN}{after}"


def test_a_private_key_of_several_lines():
    """The lines between its begin and end are replaced; what follows is read again."""
    assert redacted(f"{PEM}step 1") == (
        f"-----BEGIN PRIVATE KEY-----\n{HIDDEN}\n{HIDDEN}\n-----END PRIVATE KEY-----\nstep 1"
    )
    redactor = Redactor()
    assert "".join(redactor.text(part) for part in (f"{PEM}step 1").splitlines(True)) == redacted(f"{PEM}step 1")
    prefixed = "".join(f"[rank0]: {line}\n" for line in PEM.splitlines())
    assert "SECRET" not in redacted(prefixed) and "SECRET" not in redacted(PEM.replace("\n", "\r\n"))
    headed = PEM.replace("-\nM", "-\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,8A5D26F4\n\nM")
    assert "SECRET" not in redacted(headed) and "8A5D" not in redacted(headed)


def test_a_private_key_in_json():
    """The file of a service account, on one line: nothing of its key is left."""
    account = json.dumps({"type": "service_account", "private_key": PEM, "client_id": "1"})
    assert redacted(account) == f'{{"type": "service_account", "private_key": "{HIDDEN}", "client_id": "1"}}'
    assert "SECRET" not in redacted(json.dumps(account)) and "SECRET" not in redacted(PEM.replace("\n", " "))


def test_secrets_beside_the_begin_and_the_end_of_a_key():
    """They are replaced as in any other line."""
    found = redacted("API_TOKEN=hunter2hunter2 -----BEGIN RSA PRIVATE KEY-----MIIEabcdef")
    assert found == f"API_TOKEN={HIDDEN} -----BEGIN RSA PRIVATE KEY-----{HIDDEN}"
    found = redacted("-----BEGIN PRIVATE KEY-----\nMIIE\nabc-----END PRIVATE KEY----- token=abcdef12\nstep 1")
    assert found.endswith(f"\n{HIDDEN}-----END PRIVATE KEY----- token={HIDDEN}\nstep 1")


def test_a_key_without_end_hides_no_more_than_a_key():
    """The first line that is of no key ends it, and so does a number of lines that no key has."""
    trace = "Traceback (most recent call last):\n  File train.py\nValueError: bad\n"
    assert redacted(f"no '-----BEGIN PRIVATE KEY-----' line in key.pem\n{trace}").endswith(trace)
    assert redacted(f"-----BEGIN PRIVATE KEY-----\nMIIE\n{trace}") == f"-----BEGIN PRIVATE KEY-----\n{HIDDEN}\n{trace}"
    words = redacted("-----BEGIN PRIVATE KEY-----\n" + "word\n" * 1000).splitlines()
    assert words.count(HIDDEN) == KEY_LINES_MAX and words.count("word") == 1000 - KEY_LINES_MAX


@pytest.mark.parametrize(
    "secret", ["token=" + "abcdef12" * 20, 'password="' + "a b " * 100 + '"', PEM.replace("\n", "\\n")]
)
@pytest.mark.parametrize("behind", [0, 1, 10, 60, 200])
def test_a_long_line_is_divided_where_no_secret_is(secret, behind):
    """A secret at any place beside the division is replaced as in the whole line."""
    line = "x " * OVERLAP_CHARS + secret + " y" * (OVERLAP_CHARS // 2 - behind)
    redactor = Redactor()
    first, rest = redactor.beginning(line)
    assert len(rest) >= OVERLAP_CHARS and first + redactor.text(f"{rest} z") == redacted(f"{line} z")


def test_what_it_begins_with():
    """An expression is tried only where a literal is: each of its matches must begin with one."""
    for pattern in PATTERNS:
        found = pattern.expression.search(SECRETS[pattern.name][0])
        assert found is not None and found[0].lower().startswith(pattern.literals), pattern.name
        assert not re.search(r"[A-Z]", "".join(pattern.literals))
