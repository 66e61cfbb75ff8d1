// What OpenAI's SDK for Node makes of llmgw: asked by test_sdks.py, told in JSON on standard output.
import OpenAI from "openai";

const asked = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: asked.base, apiKey: "any", maxRetries: 0 });

async function failing(ask) {
  try {
    await ask();
    return { name: "none" };
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, id: Boolean(error.requestID) };
  }
}

const called = (call) => ({ name: call.function.name, arguments: JSON.parse(call.function.arguments) });

async function tried(model) {
  const body = { model, messages: asked.messages, max_tokens: 12, temperature: 0 };
  const long = { ...body, max_tokens: 200, ignore_eos: true };
  const tooled = { model, messages: asked.repeat, tools: [asked.tool], max_tokens: 60, temperature: 0 };
  const heard = {};
  heard.chat = (await client.chat.completions.create(body)).choices[0].message.content;
  heard.streamed = "";
  const stream = await client.chat.completions.create({
    ...body, model: `${model}-alias`, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    heard.streamed += chunk.choices[0]?.delta?.content ?? "";
    heard.usage = chunk.usage?.completion_tokens;
  }
  const first = await client.chat.completions.create(tooled);
  heard.tool = called(first.choices[0].message.tool_calls[0]);
  const streamed = await client.chat.completions.stream(tooled).finalChatCompletion();
  heard.streamedTool = called(streamed.choices[0].message.tool_calls[0]);
  heard.response = (await client.responses.create({ model, input: "Hello", max_output_tokens: 4 })).output_text;
  heard.unknown = await failing(() => client.chat.completions.create({ ...body, model: `${model}-none` }));
  heard.tooLong = await failing(() => client.chat.completions.create({ ...body, messages: asked.long }));
  heard.timeout = await failing(() => client.chat.completions.create(long, { timeout: 300 }));
  heard.abort = await failing(() => {
    const leaving = new AbortController();
    setTimeout(() => leaving.abort(), 300);
    return client.chat.completions.create(long, { signal: leaving.signal });
  });
  const left = await client.chat.completions.create({ ...long, max_tokens: 900, stream: true });
  for await (const _ of left) break;
  return heard;
}

const told = { chat: await tried("chat"), llama: await tried("llama") };
const texts = ["The capital of France", "a cat"];
const embedded = await client.embeddings.create({ model: "embed", input: texts });
told.embedded = embedded.data.map((each) => each.embedding.length);
told.models = [];
for await (const model of client.models.list()) told.models.push(model.id);
const statuses = [];
const patient = new OpenAI({
  baseURL: asked.base, apiKey: "any", maxRetries: 30,
  fetch: async (...request) => {
    const answer = await fetch(...request);
    statuses.push(answer.status);
    return answer;
  },
});
const late = await patient.chat.completions.create({ model: "late", messages: asked.messages, max_tokens: 1 });
told.late = { answered: late.choices.length === 1, statuses };
console.log(JSON.stringify(told));
