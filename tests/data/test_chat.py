"""Chat templates: rendered as they are written for, in a sandbox; turns found where they stand."""

from datetime import datetime

import pytest

from mlxtrain.data.chat import ChatTemplate, RewrittenTurn
from mlxtrain.errors import UserError

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Trims turns, as Llama 3's and Gemma's do.
TRIMS = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]\n{% endfor %}"
# Cuts the reasoning out of every turn but the last, as Qwen 3's does, and frames the last by whether it reasons.
THINKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{% if loop.last %}<t>{{ m.content.split('</think>')[0].split('<think>')[-1] }}</t>{% endif %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<end>{% endfor %}"
)


def turns(*contents: str) -> list[dict]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def found(source: str, messages: list[dict]) -> list[str]:
    text, spans = ChatTemplate(source).render_turns(messages)
    return [text[start:stop] for start, stop in spans]


def test_turns_are_found_where_they_stand():
    messages = turns("hi", "hi", "assistant", "assistant", "<|im_end|>", "user\nhi")
    text, spans = ChatTemplate(CHATML).render_turns(messages)
    assert [text[a:b] for a, b in spans] == ["hi", "assistant", "user\nhi"]
    # The assistant's own "hi", not the user's and not the word in a header.
    assert [text[:a].endswith("<|im_start|>assistant\n") for a, _ in spans] == [True] * 3


def test_empty_turns_and_conversations_without_an_assistant():
    assert found(CHATML, turns("hi", "")) == [""]
    assert found(CHATML, turns("hi")) == []


def test_trimmed_turns_are_found_without_their_white_space():
    assert found(TRIMS, turns("hi", "  yes \n", "and?", "no")) == ["yes", "no"]


def test_a_rewritten_turn_is_refused_with_its_place():
    upper = "{% for m in messages %}{{ m.content | upper }}|{% endfor %}"
    with pytest.raises(RewrittenTurn, match=r"messages\[1\]"):
        found(upper, turns("hi", "yes"))
    with pytest.raises(RewrittenTurn, match=r"messages\[1\]"):
        found(THINKS, turns("2+2?", "<think>two and two</think>4", "sure?", "yes"))
    # One that would be found elsewhere in the text must not be taken for the turn.
    shout = "{% for m in messages %}{{ m.content if m.role == 'user' else m.content | upper }}|{% endfor %}"
    with pytest.raises(RewrittenTurn):
        found(shout, turns("yes please", "yes"))
    with pytest.raises(RewrittenTurn):
        found("{% for m in messages %}{{ m.content[:3] }}|{% endfor %}abcdef abcdef", turns("hi", "abcdef"))


def test_a_frame_that_depends_on_the_turn_is_no_obstacle():
    cleaned = "{% for m in messages %}{% if 'x' in m.content %}(x){% endif %}{{ m.content }}.{% endfor %}"
    assert found(cleaned, turns("a", "has x in it", "b", "plain")) == ["has x in it", "plain"]


def test_template_language_is_what_templates_expect():
    loops = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}\n"
    assert ChatTemplate(loops).render(turns("ü<", "b")) == '{"role": "user", "content": "ü<"}'
    assert ChatTemplate("{{ bos_token }}x{{ eos_token }}", bos="<s>", eos="</s>").render([]) == "<s>x</s>"
    trimmed = "{% if true %}\n  {% set x = 1 %}\na{% endif %}\n"
    assert ChatTemplate(trimmed).render([]) == "a"
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]).isdigit()
    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}", date=datetime(2026, 1, 31)).render([]) == "31 Jan 2026"


def test_a_template_that_refuses_says_so():
    source = "{% if messages[0].role != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}"
    with pytest.raises(ValueError, match="roles must alternate"):
        ChatTemplate(source).render([{"role": "system", "content": "x"}])
    with pytest.raises(ValueError, match="fails on the conversation"):
        ChatTemplate("{{ messages[0].content + 1 }}").render(turns("hi"))
    with pytest.raises(ValueError, match="fails on the conversation"):
        ChatTemplate("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").render([])
    with pytest.raises(ValueError, match="fails on the conversation"):
        ChatTemplate("{{ '{}'.format() }}").render([])
    with pytest.raises(UserError, match="does not parse"):
        ChatTemplate("{% for m in %}")


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['os'] }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(attack):
    with pytest.raises(ValueError):
        ChatTemplate(attack).render(turns("hi"))
