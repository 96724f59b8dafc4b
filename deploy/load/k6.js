// Load by k6: k6 run --vus 16 --duration 60s -e URL=http://127.0.0.1:8000 deploy/load/k6.js
// Each user sends one completion after the other. TOKENS, PROMPT and API_KEY are variables too (-e NAME=VALUE).
import http from 'k6/http';
import { check, sleep } from 'k6';
import { Counter } from 'k6/metrics';

const tokens = new Counter('output_tokens');
const body = JSON.stringify({
  prompt: __ENV.PROMPT || 'Once upon a time',
  max_tokens: Number(__ENV.TOKENS || 64),
  ignore_eos: true,
});
const headers = { 'Content-Type': 'application/json' };
if (__ENV.API_KEY) headers.Authorization = `Bearer ${__ENV.API_KEY}`;

// k6 has no event streams: answers are whole, and http_req_waiting is the time of all of one.
export default function () {
  const answer = http.post(`${__ENV.URL || 'http://127.0.0.1:8000'}/v1/completions`, body, { headers, timeout: '600s' });
  if (check(answer, { 'status is 200': (found) => found.status === 200 })) {
    tokens.add(answer.json('usage.completion_tokens'));
  } else {
    sleep(Number(answer.headers['Retry-After'] || 1));
  }
}
