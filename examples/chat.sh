#!/usr/bin/env bash
# One question with curl: whole, then streamed as server-sent events.
set -euo pipefail
url=${REPRISE_URL:-http://127.0.0.1:8080}

curl -sS --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "Name three rivers."}],
  "max_tokens": 64, "temperature": 0}'
echo

curl -sSN --fail-with-body "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "Name three rivers."}],
  "max_tokens": 64, "temperature": 0, "stream": true}'
