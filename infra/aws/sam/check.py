"""What SAM itself makes of synthesised templates: needs aws-sam-cli, not Docker.

    python infra/aws/sam/check.py cdk.out/*/*.template.json

For every function it does what sam local invoke does before it starts a
container: finds it by the name that a person types, finds its code, and resolves
its environment with env.json.
"""

import json
import os
import pathlib
import sys

try:
    from samcli.commands.local.lib.local_lambda import LocalLambdaRunner
    from samcli.lib.providers.sam_function_provider import SamFunctionProvider
    from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider
except ModuleNotFoundError as missing:
    sys.exit(f"sam-check: {missing}: pip install aws-sam-cli (python3 on the PATH must be the one that has it)")

overrides = json.loads(pathlib.Path(__file__).with_name("env.json").read_text())
checked = 0
for template in sys.argv[1:]:
    stacks, _ = SamLocalStackProvider.get_stacks(template)
    provider = SamFunctionProvider(stacks)
    for function in provider.get_all():
        assert provider.get(function.functionname).function_id == function.function_id, "not found by its name"
        assert function.runtime == "provided.al2023" and function.handler == "bootstrap", function
        assert os.path.isfile(function.codeuri) and function.codeuri.endswith(".zip"), function.codeuri
        runner = LocalLambdaRunner(None, provider, os.getcwd(), os.getcwd(), env_vars_values=overrides)
        resolved = runner._make_env_vars(function).resolve()
        for name, value in overrides["Parameters"].items():
            assert name not in function.environment["Variables"] or resolved[name] == value, name
        for name in ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_SQS"):
            assert resolved.get(name) == overrides["Parameters"][name], f"{name} is not declared"
        print(f"{function.functionname}: {function.architectures[0]}, {os.path.basename(function.codeuri)[:16]}..., {len(function.environment['Variables'])} variables")
        checked += 1
assert checked, "no function"
