#!/bin/sh
curl http://127.0.1.1:1025/v1/completions -H "Content-Type: application/json" -d '{ "model": "deepseek", "prompt": "how is it today", "max_tokens": 50, "temperature": 0 }'
