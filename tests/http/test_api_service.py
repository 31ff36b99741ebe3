"""Everything beside chats: models, health, actors, keys, hosts and origins, the OpenAPI document."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import trio
from api_call import CHAT, Answer, call, chat

from strata.config import Settings
from strata.errors import ConfigError
from strata.http.app import create_app
from strata.http.arriving import Arriving
from strata.runtime import open_runtime
from strata.testing import Fault, Script, ScriptedEngine

OPEN = ("/health", "/ready")
ORDERS = ("/admin/actors/x/cancel", "/admin/drain", "/admin/engine/restart")
KEYED = ("/v1/models", "/v1/models/default", "/metrics", "/admin/actors", "/admin/actors/x", "/openapi.json")


def engine(**named: Any) -> ScriptedEngine:
    return ScriptedEngine(script=Script(by_text={"ping": "pong!"}), **named)


async def test_the_models_are_one_entry_with_its_aliases(autojump_clock):
    async with open_runtime(host=engine(), served_name="tiny/chat") as runtime:
        app = create_app(runtime)
        listed = (await call(app, "GET", "/v1/models")).json
        assert listed["object"] == "list"
        (entry,) = listed["data"]
        assert (entry["id"], entry["object"], entry["owned_by"]) == ("tiny/chat", "model", "strata")
        assert entry["meta"]["context"] == runtime.model.context
        assert set(entry["meta"]) == {"context", "size", "quantisation", "architecture"}
        for name in ("tiny/chat", "default", *entry["aliases"]):
            assert (await call(app, "GET", f"/v1/models/{name}")).json == entry
        missing = await call(app, "GET", "/v1/models/other")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_while_the_model_is_loaded_it_is_healthy_and_all_else_is_told_to_come_again(autojump_clock):
    """B61: nobody restarts a server that is on its way; a key is asked for all the same."""
    arriving = Arriving(Settings.of(api_keys=("sesame",)))
    app, key = create_app(arriving), {"authorization": "Bearer sesame"}
    health, ready = await call(app, "GET", "/health"), await call(app, "GET", "/ready")
    assert (health.status, health.json["status"], health.json["state"]) == (200, "ok", "loading")
    assert (ready.status, ready.json["state"], ready.json["incarnation"]) == (503, "loading", None)
    assert "loaded" in ready.json["reason"]
    for method, path, body in [("POST", CHAT, chat("ping")), *(("GET", path, None) for path in KEYED)]:
        assert (await call(app, method, path, body)).status == 401
        told = await call(app, method, path, body, key)
        assert (told.status, told.error["type"]) == (503, "engine_unavailable")
        assert told.error["message"] == ready.json["reason"]
        assert int(told.headers["retry-after"]) >= 1
    async with open_runtime(host=engine(), settings=arriving.settings) as runtime:
        arriving.came(runtime)
        assert (await call(app, "GET", "/ready")).status == 200
        assert (await call(app, "POST", CHAT, chat("ping"), key)).status == 200


async def test_while_another_engine_is_started_it_is_healthy_and_not_ready_and_says_why(autojump_clock):
    """B61: nobody restarts the server because it restarts its engine."""
    engines = [engine(incarnation=n, start_s=n - 1.0, faults=[Fault(slice=1)] if n == 1 else []) for n in (1, 2)]
    async with open_runtime(host=lambda n: engines[n - 1]) as runtime:
        app = create_app(runtime)
        dies = await call(app, "POST", CHAT, chat("ping"))
        assert (dies.status, dies.json["error"]["type"]) == (503, "engine_unavailable")
        assert int(dies.headers["retry-after"]) >= 1
        health, ready = await call(app, "GET", "/health"), await call(app, "GET", "/ready")
        assert (health.status, ready.status) == (200, 503)
        assert (ready.json["state"], ready.json["incarnation"]) == ("restarting", 1)
        assert "the engine died: it was told to" in ready.json["reason"]
        assert (await call(app, "POST", CHAT, chat("ping", max_tokens=2))).status == 200
        ready = await call(app, "GET", "/ready")
        assert (ready.status, ready.json["state"], ready.json["incarnation"]) == (200, "ready", 2)


async def test_health_and_ready_differ_while_it_drains_and_agree_while_it_works(autojump_clock):
    """B61: a full queue or a long chunk makes nobody restart the server."""
    async with open_runtime(host=engine(slice_s=600.0), policy="fifo", max_queued=1) as runtime:
        app = create_app(runtime)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(call, app, "POST", CHAT, chat("ping", max_tokens=1))
                await trio.sleep(1)
            assert (await call(app, "POST", CHAT, chat("ping"))).status == 429
            assert (await call(app, "GET", "/health")).status == 200
            assert (await call(app, "GET", "/ready")).status == 200
            nursery.cancel_scope.cancel()
        runtime.drain()
        health, ready = await call(app, "GET", "/health"), await call(app, "GET", "/ready")
        refused = await call(app, "POST", CHAT, chat("ping"))
    assert (health.status, health.json["status"], health.json["state"]) == (200, "ok", "draining")
    assert (ready.status, ready.json["state"]) == (503, "draining")
    assert "draining" in ready.json["reason"]
    assert "draining" in refused.error["message"]
    assert (refused.status, refused.error["type"]) == (503, "shutting_down")
    assert {"retry-after"} <= ready.headers.keys() & refused.headers.keys()


async def test_the_actors_show_states_and_figures_and_no_text(autojump_clock):
    """B65: neither the prompt nor the answer."""
    async with open_runtime(host=engine(slice_s=5.0)) as runtime, trio.open_nursery() as nursery:
        app = create_app(runtime)
        nursery.start_soon(call, app, "POST", CHAT, chat("ping with a secret"))
        await trio.sleep(1.5)
        tree = await call(app, "GET", "/admin/actors")
        (request,) = [actor for actor in tree.json["actors"] if actor["kind"] == "request"]
        assert request["state"]
        assert request["figures"]["prompt_tokens"] == len("user: ping with a secret\nassistant: ")
        await trio.sleep(20)
        detail = await call(app, "GET", f"/admin/actors/{request['id']}")
        unknown = await call(app, "GET", "/admin/actors/request-99")
    assert [change["state"] for change in detail.json["history"]][-1] == "done"
    assert len(detail.body) <= 2048
    assert "secret" not in tree.body.decode() + detail.body.decode()
    assert "pong" not in tree.body.decode() + detail.body.decode()
    assert (unknown.status, unknown.error["code"]) == (404, "unknown_request")


async def test_a_cancel_is_404_for_the_unknown_and_409_for_the_done(autojump_clock):
    async with open_runtime(host=engine()) as runtime:
        app = create_app(runtime)
        await call(app, "POST", CHAT, chat("ping"))
        unknown = await call(app, "POST", "/admin/actors/request-99/cancel")
        done = await call(app, "POST", "/admin/actors/request-1/cancel")
    assert (unknown.status, unknown.error["code"]) == (404, "unknown_request")
    assert (done.status, done.error["code"]) == (409, "already_done")


async def test_an_administrators_post_from_a_foreign_page_or_form_does_nothing(autojump_clock):
    async with open_runtime(host=engine(slice_s=5.0)) as runtime, trio.open_nursery() as nursery:
        app = create_app(runtime)
        nursery.start_soon(call, app, "POST", CHAT, chat("ping"))
        await trio.sleep(1.5)
        path = "/admin/actors/request-1/cancel"
        foreign = await call(app, "POST", path, headers={"origin": "http://evil.example"})
        form = await call(app, "POST", path, headers={"content-type": "text/plain"})
        assert runtime.statistics().reading + runtime.statistics().decoding == 1
        own = await call(app, "POST", path, headers={"origin": "http://localhost"})
    assert (foreign.status, foreign.error["type"]) == (403, "permission_error")
    assert (form.status, form.error["code"]) == (415, "unsupported_media_type")
    assert own.status == 200


@pytest.mark.parametrize("headers", [{"content-type": "text/plain"}, {"content-type": ""}])
async def test_a_chat_from_a_foreign_page_is_not_answered(autojump_clock, headers):
    """What a browser sends anywhere without asking first: it would cost the model's time, though not be readable."""
    async with open_runtime(host=engine()) as runtime:
        refused = await call(create_app(runtime), "POST", CHAT, chat(), {"origin": "http://evil.example", **headers})
        assert runtime.statistics().ended == 0
    assert (refused.status, refused.error["code"]) == (415, "unsupported_media_type")
    assert "Content-Type" in refused.error["message"]


async def test_a_compressed_body_is_refused_and_the_answer_says_what_is_taken(autojump_clock):
    """RFC 9110, 15.5.16."""
    async with open_runtime(host=engine()) as runtime:
        refused = await call(create_app(runtime), "POST", CHAT, b"\x1f\x8b\x08", {"content-encoding": "gzip"})
    assert (refused.status, refused.error["code"]) == (415, "unsupported_content_encoding")
    assert refused.headers["accept-encoding"] == "identity"
    assert "Content-Encoding" in refused.error["message"]


async def test_an_administrator_drains_the_server_and_it_stays(autojump_clock):
    """What has started ends as ever, parked or not; queued ones and new ones are told to come again."""
    async with open_runtime(host=engine(slice_s=0.1), policy="preempt") as runtime, trio.open_nursery() as nursery:
        app = create_app(runtime)
        answers = {}

        async def ask(name: str, words: int) -> None:
            answers[name] = await call(app, "POST", CHAT, chat(f"{name} " * words, max_tokens=2))

        for name, words in (("parked", 400), ("runs", 100), ("queued", 100)):
            nursery.start_soon(ask, name, words)
            await trio.sleep(0.25)
        assert (await call(app, "POST", "/admin/drain")).json == {"draining": True, "started": 2}
        assert (await call(app, "POST", "/admin/drain")).json == {"draining": True, "started": 2}
        assert (await call(app, "GET", "/ready")).json["state"] == "draining"
        assert (await call(app, "POST", CHAT, chat("ping"))).error["type"] == "shutting_down"
        await runtime.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        assert {name: answer.status for name, answer in answers.items()} == {"parked": 200, "runs": 200, "queued": 503}
        assert "draining" in answers["queued"].error["message"]
        assert (await call(app, "GET", "/health")).status == 200


async def test_a_drain_while_another_engine_comes_counts_those_that_it_will_replay(autojump_clock):
    """They are queued again, and go on all the same."""
    settings = {"on_engine_death": "replay", "max_running": 2}
    async with (
        open_runtime(host=lambda n: engine(incarnation=n, start_s=(n - 1) * 5.0, step_s=0.2), **settings) as runtime,
        trio.open_nursery() as nursery,
    ):
        app, started = create_app(runtime), [Answer(), Answer()]
        for answer in started:
            nursery.start_soon(partial(call, app, "POST", CHAT, chat("ping", max_tokens=20), answer=answer))
        await trio.sleep(0.3)
        runtime.restart_engine()
        await trio.sleep(1)
        assert runtime.statistics().queued == 2
        for _ in range(2):
            assert (await call(app, "POST", "/admin/drain")).json == {"draining": True, "started": 2}
        await runtime.wait_idle()
        assert runtime.statistics().started == 0
    assert [answer.status for answer in started] == [200, 200]


async def test_an_administrator_has_the_engine_replaced(autojump_clock):
    async with open_runtime(host=lambda n: engine(incarnation=n, start_s=n - 1.0)) as runtime:
        app = create_app(runtime)
        for _ in range(2):
            told = await call(app, "POST", "/admin/engine/restart")
            assert (told.status, told.json) == (200, {"restarting": True, "begun": True, "incarnation": 1})
        assert (await call(app, "GET", "/ready")).status == 503
        await trio.sleep(3)
        assert (await call(app, "GET", "/ready")).json["incarnation"] == 3
    async with open_runtime(host=engine()) as runtime:
        refused = await call(create_app(runtime), "POST", "/admin/engine/restart")
        assert (refused.status, refused.error["type"]) == (503, "engine_unavailable")


async def test_with_a_key_set_all_but_health_needs_it(autojump_clock):
    """B64: what shows content or changes state."""
    async with open_runtime(host=engine(), api_keys="user,other") as runtime:
        app = create_app(runtime)
        for path in OPEN:
            assert (await call(app, "GET", path)).status == 200
        for key in (None, "Bearer wrong", "Basic user"):
            headers = {} if key is None else {"authorization": key}
            answers = [await call(app, "GET", path, headers=headers) for path in KEYED]
            answers += [await call(app, "POST", path, chat(), headers) for path in (CHAT, *ORDERS)]
            for answer in answers:
                assert (answer.status, answer.error["type"]) == (401, "authentication_error")
                assert answer.headers["www-authenticate"] == "Bearer"
        for key in ("user", "other"):
            answer = await call(app, "POST", CHAT, chat("ping"), {"authorization": f"Bearer {key}"})
            assert answer.status == 200
            assert (await call(app, "GET", "/metrics", headers={"authorization": f"Bearer {key}"})).status == 200


async def test_with_an_admin_key_a_users_key_opens_no_admin(autojump_clock):
    """B64: 401 without a key, 403 with one that is not enough."""
    async with open_runtime(host=engine(), api_keys="user", admin_key="root") as runtime:
        app = create_app(runtime)
        for key, status in ((None, 401), ("user", 403), ("root", 200)):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            assert (await call(app, "GET", "/admin/actors", headers=headers)).status == status
            if status != 200:
                assert {(await call(app, "POST", path, headers=headers)).status for path in ORDERS} == {status}
        assert runtime.health().ready
        assert (await call(app, "GET", "/v1/models", headers={"authorization": "Bearer root"})).status == 200


async def test_a_host_that_is_not_ours_is_refused_on_loopback(autojump_clock):
    async with open_runtime(host=engine()) as runtime:
        app = create_app(runtime)
        for path in ("/health", "/v1/models"):
            answer = await call(app, "GET", path, headers={"host": "evil.example:8000"})
            assert (answer.status, answer.error["type"]) == (403, "permission_error")
            assert (await call(app, "GET", path, headers={"host": "127.0.0.1:8000"})).status == 200


async def test_no_page_of_another_origin_is_let_in_unless_it_is_named(autojump_clock):
    origin = {"origin": "https://chat.example"}
    asking = {**origin, "access-control-request-method": "POST"}
    async with open_runtime(host=engine()) as runtime:
        app = create_app(runtime)
        for answer in (
            await call(app, "GET", "/v1/models", headers=origin),
            await call(app, "OPTIONS", CHAT, headers=asking),
        ):
            assert not any(name.startswith("access-control") for name in answer.headers)
    async with open_runtime(host=engine(), api_keys="user", cors_origin="https://chat.example") as runtime:
        app = create_app(runtime)
        asked = await call(app, "OPTIONS", CHAT, headers=asking)
        assert asked.status == 204
        assert asked.headers["access-control-allow-methods"] == "POST, OPTIONS"
        assert "Authorization" in asked.headers["access-control-allow-headers"]
        for path, body in (
            ("/v1/models", None),
            (CHAT, chat("ping", stream=True)),
            (CHAT, chat("ping", stream=True, n=3)),
        ):
            method = "GET" if body is None else "POST"
            told = await call(app, method, path, body, {**origin, "authorization": "Bearer user"})
            assert told.headers["access-control-allow-origin"] == "https://chat.example"
            assert told.headers["vary"] == "Origin"
        other = await call(
            app, "GET", "/v1/models", headers={"origin": "https://other.example", "authorization": "Bearer user"}
        )
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "not_found_error"),
        ("GET", "/v1/models/", 404, "not_found_error"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("PUT", "/health", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("BREW", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_what_no_route_takes_is_refused_in_the_same_shape(autojump_clock, method, path, status, kind):
    """B60: also where no route was found."""
    async with open_runtime(host=engine()) as runtime:
        answer = await call(create_app(runtime), method, path)
    assert (answer.status, answer.error["type"]) == (status, kind)
    assert ("allow" in answer.headers) is (status == 405)
    assert ("the header Allow" if status == 405 else "; /openapi.json names") in answer.error["message"]


async def test_a_body_over_the_limit_is_413(autojump_clock):
    async with open_runtime(host=engine(), max_body_mib=0.01) as runtime:
        app = create_app(runtime)
        answer = await call(app, "POST", CHAT, chat("x" * 20_000))
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert (await call(app, "POST", CHAT, chat("ping"))).status == 200


async def test_a_body_that_never_ends_is_408(autojump_clock):
    async with open_runtime(host=engine(), body_timeout_s=3.0) as runtime:
        app = create_app(runtime)

        async def stalled(scope: Any, receive: Any, send: Any) -> None:
            unread = [{"type": "http.request", "body": b"{", "more_body": True}]

            async def part() -> Any:
                return unread.pop() if unread else await trio.sleep_forever()

            await app(scope, part, send)

        answer = await call(stalled, "POST", CHAT)
    assert (answer.status, answer.error["type"]) == (408, "timeout_error")


async def test_a_bug_of_ours_is_500_with_an_id_that_is_in_the_log(autojump_clock, caplog):
    """B65: a health check that fails on purpose stands for any bug; what it quotes stays inside."""
    async with open_runtime(host=engine()) as runtime:
        app = create_app(runtime)
        quoted = "the secret prompt"

        @app.get("/broken")
        async def broken() -> str:
            raise ValueError(quoted)

        answer = await call(app, "GET", "/broken")
    assert (answer.status, answer.error["type"]) == (500, "internal_error")
    assert answer.error["code"] in caplog.text
    assert "secret" not in caplog.text + answer.body.decode()


async def test_the_document_names_every_route_and_type(autojump_clock):
    async with open_runtime(host=engine()) as runtime:
        app = create_app(runtime)
        told = (await call(app, "GET", "/openapi.json")).json
    rules = {
        str(rule).replace("<path:", "{").replace("<", "{").replace(">", "}"): rule.methods - {"OPTIONS", "HEAD"}
        for rule in app.url_map.iter_rules()
    }
    assert {path: {m.upper() for m in methods} for path, methods in told["paths"].items()} == rules
    assert told["openapi"] == "3.1.0"
    references = set(_references(told))
    assert references == {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    body = told["components"]["schemas"]["ChatBody"]
    assert body["required"] == ["messages"]
    assert body["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    chat_answers = told["paths"][CHAT]["post"]["responses"]
    assert set(chat_answers) == {"200", "400", "401", "403", "404", "408", "409", "413", "415", "429", "500", "503"}
    assert set(chat_answers["200"]["content"]) == {"application/json", "text/event-stream"}


async def test_a_public_address_without_a_key_refuses_the_app(autojump_clock):
    for named in ({}, {"api_keys": "user"}, {"insecure": True}):
        async with open_runtime(host=engine(), **named) as runtime:
            public = attrs.evolve(runtime.settings.serve, host="0.0.0.0")
            if named:
                assert create_app(runtime, public)
            else:
                with pytest.raises(ConfigError, match="--api-key"):
                    create_app(runtime, public)


async def test_a_key_file_without_a_key_refuses_the_app(autojump_clock, tmp_path):
    file = tmp_path / "keys"
    file.write_text("")
    async with open_runtime(host=engine(), api_key_file=file) as runtime:
        with pytest.raises(ConfigError):
            create_app(runtime)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for inner in value.values() for found in _references(inner)]
    return [found for inner in value for found in _references(inner)] if isinstance(value, list) else []
