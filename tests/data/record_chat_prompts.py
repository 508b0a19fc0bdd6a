#!/usr/bin/env python3
"""Records what llama.cpp's server makes of conversations, for src/token/chat_prompts_test.cc.

  tests/data/record_chat_prompts.py LLAMA_SERVER MODELS_DIR TEMPLATES_DIR

Reads chat_conversations.json beside it: bodies of chat completion requests. Starts LLAMA_SERVER (tools/peer builds it)
for each template below, posts every body to /apply-template and writes the prompts, or null where it refuses, to
chat_prompts.json. TEMPLATES_DIR is models/templates of the same llama.cpp; a template that prints today's date has no
place here.
"""

import json
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

SMOLLM = "smollm2-135m-instruct-q4_1.gguf"
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
# (model, template file; "" for the model's own)
SETS = [
    (SMOLLM, ""),
    (QWEN, ""),
    (QWEN, "Qwen-Qwen3-0.6B.jinja"),
    (QWEN, "Qwen3-Coder.jinja"),
    (SMOLLM, "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja"),
    (SMOLLM, "mistralai-Mistral-Nemo-Instruct-2407.jinja"),
    (GEMMA, "google-gemma-2-2b-it.jinja"),
    (QWEN, "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja"),
]
PORT = 18719


def post(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def wait_until_ready(server):
    for _ in range(600):
        if server.poll() is not None:
            sys.exit("the server ended")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit("the server does not answer")


def main():
    binary, models, templates = sys.argv[1:]
    here = pathlib.Path(__file__).parent
    conversations = json.loads((here / "chat_conversations.json").read_text())
    recorded = []
    for model, template in SETS:
        command = [binary, "-m", f"{models}/{model}", "--port", str(PORT), "-c", "512", "-t", "1", "--no-warmup"]
        if template:
            command += ["--chat-template-file", f"{templates}/{template}"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_ready(server)
            prompts = []
            for body in conversations:
                try:
                    prompts.append(post("/apply-template", body)["prompt"])
                except urllib.error.HTTPError:
                    prompts.append(None)
            recorded.append({"model": model, "template": template, "prompts": prompts})
        finally:
            server.terminate()
            server.wait()
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    (here / "chat_prompts.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
