#!/bin/sh
curl http://127.0.1.1:8080/v1/chat/completions \
    -H "Content-Type: application/json" \
    -d '{
        "model": "model",
        "messages": [
            { "role": "system", "content": "You are a useful AI assistant." },
            { "role": "user", "content": "Question: Janet'\''s ducks lay 16 eggs per day. She eats three for breakfast and bakes muffins with four. She sells the remainder for $2 each. How much does she make?\nAnswer:" }
        ],
        "max_completion_tokens": 100,
        "temperature": 0
    }'
