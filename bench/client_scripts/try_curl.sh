#!/bin/sh
# curl, as in the line that the server prints.  Says what it found as one JSON line.
url=$STRATA_URL/v1/chat/completions
body='{"messages":[{"role":"user","content":"Say hello."}],"max_tokens":8'
passed= failed=

check() { # a name, what must be in it, and what came
    case $3 in
    *"$2"*) passed="$passed,\"$1\"" ;;
    *) failed="$failed,\"$1\":\"$2 was not in the answer\"" ;;
    esac
}

ask() { curl -sS -N -m 60 -w '\nstatus %{http_code}' -H 'content-type: application/json' "$@"; }

check whole '"finish_reason":"' "$(ask "$url" -d "$body}")"
check stream 'data: [DONE]' "$(ask "$url" -d "$body,\"stream\":true}")"
check error 'status 400' "$(ask "$url" -d '{"messages":[{"role":"user","content":"x"}],"max_tokens":1000000}')"
check malformed 'status 400' "$(ask "$url" -d '{"messages":')"
check models '"object":"list"' "$(ask "$STRATA_URL/v1/models")"
check health 'status 200' "$(ask "$STRATA_URL/health")"
version=$(curl --version | head -n 1 | cut -d ' ' -f 2)
echo "{\"version\":\"$version\",\"passed\":[${passed#,}],\"failed\":{${failed#,}}}"
