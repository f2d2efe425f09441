"""Secrets in text that is shared."""

import pytest

from ftcore.redaction import HIDDEN, PATTERNS, Redactor, redacted

SECRETS = {
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
    "value of an option": ("train.py --hub-token abc12345 --lr 3", "abc12345"),
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
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "connect to tcp://10.0.0.1:29500 master_addr=node1:29500",
        "2026-11-25 18:05:27,123 rank 3: NCCL WARN socketProgress: Connection closed by remote peer",
    ],
)
def test_training_output_stays(text):
    """Numbers and names that only look like secrets are not replaced."""
    assert redacted(text) == text


def test_a_private_key_of_several_lines():
    """The lines between its begin and end are replaced; what follows is read again."""
    lines = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpA", "abc", "-----END RSA PRIVATE KEY-----", "step 1"]
    redactor = Redactor()
    assert [redactor.line(line) for line in lines] == [lines[0], HIDDEN, HIDDEN, lines[3], "step 1"]
