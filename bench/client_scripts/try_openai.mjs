// The official client for JavaScript.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { OpenAI } = require("openai");
const { version } = JSON.parse(readFileSync("node_modules/openai/package.json"));

const client = new OpenAI({ baseURL: `${process.env.STRATA_URL}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model: "default", messages: [{ role: "user", content: "Say hello." }], max_tokens: 8 };
const tooMany = { ...asked, max_tokens: 1_000_000 };

const checks = {
  async whole() {
    const answer = await client.chat.completions.create(asked);
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },
  async stream() {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    assert.ok(text);
  },
  async stream_helper() {
    const runner = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
    const answer = await runner.finalChatCompletion();
    assert.ok(answer.choices[0].message.content);
    assert.ok(answer.usage.completion_tokens <= 8);
  },
  async left_early() {
    for await (const _ of await client.chat.completions.create({ ...asked, max_tokens: 200, stream: true })) break;
    assert.ok((await client.chat.completions.create(asked)).choices.length);
  },
  async error() {
    await assert.rejects(client.chat.completions.create(tooMany), (told) => {
      assert.ok(told instanceof OpenAI.BadRequestError);
      assert.equal(told.status, 400);
      assert.equal(told.param, "max_tokens");
      return true;
    });
  },
  async models() {
    const { data } = await client.models.list();
    assert.equal((await client.models.retrieve(data[0].id)).id, data[0].id);
  },
};

const told = { version, passed: [], failed: {} };
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    told.passed.push(name);
  } catch (error) {
    told.failed[name] = String(error.stack ?? error).slice(-3000);
  }
}
console.log(JSON.stringify(told));
