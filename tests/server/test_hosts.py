"""Which names a server answers under."""

from __future__ import annotations

import pytest
from serving import served

from ngramspec.cli import main
from ngramspec.server.hosts import AllowedHosts

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]

LOCAL = ["localhost", "LocalHost.:8012", "app.localhost:80", "127.0.0.1", "127.0.0.1:8012"]
LOCAL += ["127.8.9.1:1", "[::1]", "[::1]:8012", "[::ffff:127.0.0.1]:8012", "[0:0:0:0:0:0:0:1]:"]
OTHER = ["evil.example", "evil.example:8012", "localhost.evil.example", "127.0.0.1.evil.example"]
OTHER += ["10.0.0.7:8012", "[fe80::7]:8012", "0.0.0.0:8012", "[::]", "notlocalhost"]
WRONG = ["", ":8012", "localhost:x", "localhost:80:80", "::1", "[::1", "[localhost]"]
WRONG += ["127.1", "0x7f000001", "2130706433", "a b", "localhost,evil.example", "user@localhost"]


def test_by_default_only_this_machines_names_are_allowed():
    hosts = AllowedHosts([])
    assert [each for each in LOCAL if not hosts.allow(each)] == []
    assert [each for each in OTHER + WRONG if hosts.allow(each)] == []


def test_names_and_addresses_can_be_allowed():
    hosts = AllowedHosts(["Code.Example.", "10.0.0.7", "fe80::7"])
    given = ["code.example", "CODE.example.:80", "10.0.0.7:8012", "[fe80::7]:8012", *LOCAL]
    assert all(map(hosts.allow, given))
    others = ["evil.example", "sub.code.example", "10.0.0.8", "[fe80::8]", *WRONG]
    assert not any(map(hosts.allow, others))


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_a_server_bound_to_all_addresses_answers_under_each(bound):
    hosts = AllowedHosts([bound])
    given = ["10.0.0.7:8012", "[fe80::7]:8012", "0.0.0.0:8012", *LOCAL]
    assert all(map(hosts.allow, given))
    assert not any(map(hosts.allow, ["evil.example", *WRONG])), "a name can be rebound"


def test_a_star_allows_every_name():
    assert all(map(AllowedHosts(["*"]).allow, LOCAL + OTHER + WRONG))


@pytest.mark.parametrize("wrong", ["example.com:80", "http://example.com", "", "[::1]:80", "a/b"])
def test_what_is_no_host_is_refused(wrong, capsys):
    with pytest.raises(ValueError, match="without a port"):
        AllowedHosts([wrong])
    assert main(["serve", "--port", "0", "--allowed-hosts", f"one.example,{wrong}"]) == 2
    assert "--allowed-hosts" in capsys.readouterr().err


def test_a_rebound_name_reads_nothing(client, model):
    for path in ("/metrics", "/v1/models", "/health", "/props", "/none"):
        answer = client.get(path, headers={"Host": "evil.example:8012"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (421, "host_not_allowed"), path
        assert "--allowed-hosts" in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
    body = {"prompt": "x", "max_tokens": 2}
    refused = client.post("/v1/completions", json=body, headers={"Host": "evil.example"})
    assert refused.status_code == 421
    two = [("Host", "localhost"), ("Host", "evil.example")]
    assert client.get("/health", headers=two).status_code == 421
    for host in ("127.0.0.1:8012", "[::1]:8012", "localhost:8012"):
        assert client.get("/v1/models", headers={"Host": host}).status_code == 200
    with served(model, allowed_hosts=["code.example"]) as other:
        assert other.get("/health", headers={"Host": "code.example:99"}).status_code == 200
        assert other.get("/health", headers={"Host": "evil.example"}).status_code == 421


def test_the_bound_host_is_allowed():
    from types import SimpleNamespace

    from ngramspec.cli import build_parser
    from ngramspec.cli.serve import settings_of

    command = ["serve", "--host", "10.0.0.7", "--allowed-hosts", "a.example, b.example"]
    command += ["--allowed-hosts", "c.example"]
    command += ["--shared", "0", "--unknown-fields", "warn", "--grammar-seconds", "3"]
    arguments = build_parser().parse_args(command)
    found = settings_of(arguments, SimpleNamespace(name="tiny"), {"ann": "key"}, {})
    assert (found.unknown_fields, found.limits.grammar_seconds) == ("warn", 3)
    assert found.allowed_hosts == ["10.0.0.7", "a.example", "b.example", "c.example"]
