-- Load by wrk: wrk -t1 -c16 -d60s --timeout 600s --latency -s deploy/load/wrk.lua http://127.0.0.1:8000/v1/completions
-- Each connection sends one completion after the other. TOKENS, PROMPT and API_KEY are variables of the environment.
local function text(value)
  return '"' .. value:gsub('[%c"\\]', function(each) return string.format('\\u%04x', each:byte()) end) .. '"'
end

wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
if os.getenv("API_KEY") then
  wrk.headers["Authorization"] = "Bearer " .. os.getenv("API_KEY")
end
wrk.body = string.format(
  '{"prompt": %s, "max_tokens": %d, "ignore_eos": true}',
  text(os.getenv("PROMPT") or "Once upon a time"), tonumber(os.getenv("TOKENS") or 64)
)
