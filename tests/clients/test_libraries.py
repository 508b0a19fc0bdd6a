"""One conversation through each of the libraries that people put between their program and a server."""

import subprocess
import sys

QUESTION = "Name three rivers."


def test_litellm(smollm):
  import litellm
  litellm.telemetry = False
  common = {"model": "openai/small", "api_base": f"{smollm.url}/v1", "api_key": "any", "max_tokens": 16,
            "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
  whole = litellm.completion(**common).choices[0].message.content
  parts = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**common, stream=True)]
  assert whole and "".join(parts) == whole


def test_langchain(smollm):
  from langchain_openai import ChatOpenAI
  chat = ChatOpenAI(model="small", base_url=f"{smollm.url}/v1", api_key="any", max_tokens=16, temperature=0)
  whole = chat.invoke([("system", "You are brief."), ("human", QUESTION)])
  assert whole.content and whole.usage_metadata["output_tokens"] == 16
  assert "".join(part.content for part in chat.stream([("system", "You are brief."), ("human", QUESTION)])) == whole.content


def test_llm_command(smollm, tmp_path):
  (tmp_path / "extra-openai-models.yaml").write_text(
      f"- model_id: here\n  model_name: small\n  api_base: {smollm.url}/v1\n")
  done = subprocess.run([sys.executable, "-m", "llm", "-m", "here", "-o", "max_tokens", "16", "-o", "temperature", "0",
                         "--key", "any", QUESTION], env={"LLM_USER_PATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
                        capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == 0, done.stderr
  assert done.stdout.strip()
