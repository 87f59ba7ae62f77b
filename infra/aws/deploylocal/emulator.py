"""AWS on one machine: moto_server, with what its CloudFormation lacks.

    python emulator.py 127.0.0.1 5000

Stock moto leaves out a resource whose type it does not know, and properties that
it has no field for. Here a type that nobody knows fails the deployment, and what
the stacks of this repository consist of is really made, so that it can be read
back by AWS's own API. Where CloudFormation's properties are those of an API
call, that call makes the resource.
"""

import json
import sys

import boto3
from moto.awslambda import models as lambda_models
from moto.cloudformation import models as stack_models
from moto.cloudformation import parsing, responses
from moto.cloudformation.exceptions import ValidationError
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.dynamodb.models.table import Table
from moto.s3.models import s3_backends
from moto.server import main

HOST, PORT = sys.argv[1], sys.argv[2]


def client(service, region):
    """A client of this very server, which answers calls while it makes others."""
    return boto3.client(service, region_name=region, endpoint_url=f"http://{HOST}:{PORT}")


class Added:
    """A resource of a type that moto's CloudFormation does not know."""

    type = ""  # CloudFormation's
    name = None  # the property that names it; None: CloudFormation makes one up

    def __init__(self, name, region, properties):
        self.physical_resource_id, self.region = name, region
        self.put(properties)

    def put(self, properties):
        """Make it, or change it in place."""

    def drop(self):
        """Remove it. What goes with its parent needs none."""

    def is_created(self):
        return True

    def delete(self, account_id, region_name):
        self.drop()

    def get_cfn_attribute(self, attribute):
        raise ValidationError(message=f"the emulator has no {attribute} of {self.type}")

    @classmethod
    def has_cfn_attr(cls, attribute):
        return False

    @classmethod
    def cloudformation_type(cls):
        return cls.type

    @classmethod
    def cloudformation_name_type(cls):
        return cls.name

    @classmethod
    def create_from_cloudformation_json(cls, name, resource, account_id, region, **_):
        return cls(name, region, resource["Properties"])

    @classmethod
    def update_from_cloudformation_json(cls, original_resource, cloudformation_json, **_):
        original_resource.put(cloudformation_json["Properties"])
        return original_resource


class Alarm(Added):
    type, name = "AWS::CloudWatch::Alarm", "AlarmName"

    def put(self, properties):
        self.client = client("cloudwatch", self.region)
        self.client.put_metric_alarm(**{**properties, "AlarmName": self.physical_resource_id})

    def drop(self):
        self.client.delete_alarms(AlarmNames=[self.physical_resource_id])

    def get_cfn_attribute(self, attribute):
        if attribute != "Arn":
            return super().get_cfn_attribute(attribute)
        found = self.client.describe_alarms(AlarmNames=[self.physical_resource_id])
        return found["MetricAlarms"][0]["AlarmArn"]


class QueuePolicy(Added):
    type = "AWS::SQS::QueuePolicy"

    def put(self, properties):
        for url in properties["Queues"]:
            policy = {"Policy": json.dumps(properties["PolicyDocument"])}
            client("sqs", self.region).set_queue_attributes(QueueUrl=url, Attributes=policy)


class TopicPolicy(Added):
    type = "AWS::SNS::TopicPolicy"

    def put(self, properties):
        for arn in properties["Topics"]:
            client("sns", self.region).set_topic_attributes(
                TopicArn=arn, AttributeName="Policy", AttributeValue=json.dumps(properties["PolicyDocument"]))


class Subscription(Added):
    type = "AWS::SNS::Subscription"

    def put(self, properties):
        made = client("sns", self.region).subscribe(
            TopicArn=properties["TopicArn"], Protocol=properties["Protocol"], Endpoint=properties["Endpoint"])
        self.physical_resource_id = made["SubscriptionArn"]


class QueryDefinition(Added):
    """moto has no saved queries at all: only that the stack has it is kept."""

    type, name = "AWS::Logs::QueryDefinition", "Name"


class BucketPolicy(Added):
    """CDK's bucket for assets has one that denies plain HTTP, which moto would
    enforce and CDK would then not get past."""

    type = "AWS::S3::BucketPolicy"


def know(*added):
    """Add types to those that moto knows, and refuse all others."""
    types = {**parsing.get_model_map(), **{a.cloudformation_type(): a for a in added}}
    classes = list(types.values())
    parsing.get_model_map, parsing.get_model_list = lambda: types, lambda: classes
    stock = parsing.resource_class_from_type

    def resource_class_from_type(resource_type):
        if resource_type.startswith("AWS::") and resource_type not in types and resource_type not in parsing.NULL_MODELS:
            raise ValidationError(message=f"the emulator does not know {resource_type}: teach it (infra/aws/deploylocal/emulator.py)")
        return stock(resource_type)

    parsing.resource_class_from_type = resource_class_from_type


def after(model, name):
    """Let a function see what a class method of moto has made, and change it."""

    def decorate(function):
        stock = getattr(model, name)

        def both(*args, **kwargs):
            made = stock(*args, **kwargs)
            function(made, kwargs.get("cloudformation_json") or args[1])
            return made

        setattr(model, name, staticmethod(both))

    return decorate


def complete_function(function, resource):
    properties = resource["Properties"]
    function.architectures = properties.get("Architectures", ["x86_64"])
    function.tracing_config = properties.get("TracingConfig", {"Mode": "PassThrough"})
    function.logging_config = properties.get("LoggingConfig")
    function.reserved_concurrency = properties.get("ReservedConcurrentExecutions")


for moment in ("create_from_cloudformation_json", "update_from_cloudformation_json"):
    after(lambda_models.LambdaFunction, moment)(complete_function)


# A function's log settings are stored, and shown by no call of moto.
stock_configuration = lambda_models.LambdaFunction.get_configuration


def get_configuration(self, on_create=False):
    shown = stock_configuration(self, on_create)
    if getattr(self, "logging_config", None):
        shown["LoggingConfig"] = self.logging_config
    return shown


lambda_models.LambdaFunction.get_configuration = get_configuration


class Mapping(lambda_models.EventSourceMapping):
    """A mapping of a Kafka cluster. moto wants a source that it has itself."""

    __module__ = lambda_models.__name__  # moto keeps its models by that
    event_source_arn = batch_size = None  # without moto's checks

    @classmethod
    def create_from_cloudformation_json(cls, name, resource, account_id, region, **_):
        return cls.put(resource["Properties"], account_id, region)

    @classmethod
    def update_from_cloudformation_json(cls, original_resource, cloudformation_json, account_id, region_name, **_):
        return cls.put(cloudformation_json["Properties"], account_id, region_name, original_resource.uuid)

    @classmethod
    def put(cls, properties, account_id, region, uuid=None):
        backend = lambda_models.lambda_backends[account_id][region]
        function = backend.get_function(properties["FunctionName"])
        mapping = cls({**properties, "FunctionName": function.function_name, "FunctionArn": function.function_arn, "AccountId": account_id, "RegionName": region})
        if uuid:
            mapping.uuid, mapping.arn = uuid, lambda_models.make_event_source_mapping_arn(region, account_id, uuid)
        backend._event_source_mappings[mapping.uuid] = mapping
        return mapping


@staticmethod
def update_table(original_resource, **_):
    """moto would forget the table. Nothing that oncehouse changes replaces one."""
    return original_resource


def complete_table(table, resource):
    recovery = resource["Properties"].get("PointInTimeRecoverySpecification", {})
    if recovery.get("PointInTimeRecoveryEnabled"):
        table.continuous_backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] = "ENABLED"


Table.update_from_cloudformation_json = update_table
after(Table, "create_from_cloudformation_json")(complete_table)


# Stacks that are protected from deletion.


def update_termination_protection(self):
    stack = self.cloudformation_backend.get_stack(self._get_param("StackName"))
    stack.enable_termination_protection = self._get_bool_param("EnableTerminationProtection")
    return ActionResult({"StackId": stack.stack_id})


stock_delete_stack = stack_models.CloudFormationBackend.delete_stack


def delete_stack(self, name_or_stack_id):
    for stack in self.stacks.values():
        if name_or_stack_id in (stack.name, stack.stack_id) and stack.enable_termination_protection:
            raise ValidationError(message=f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
    stock_delete_stack(self, name_or_stack_id)


responses.CloudFormationResponse.update_termination_protection = update_termination_protection
stack_models.CloudFormationBackend.delete_stack = delete_stack


class ChangeSetNotFound(ServiceException):
    code = "ChangeSetNotFound"


# moto finds a change set by its name in whatever stack, and CDK's all have one name.
stock_get_param = responses.CloudFormationResponse._get_param


def get_param(self, name, if_none=None):
    value = stock_get_param(self, name, if_none)
    if name != "ChangeSetName" or self._get_action() == "CreateChangeSet":
        return value
    stack, sets = stock_get_param(self, "StackName"), self.cloudformation_backend.change_sets
    of_stack = [key for key, made in sets.items() if made.change_set_name == value and stack in (made.stack_name, made.stack_id)]
    if value in sets or self._get_action() == "DeleteChangeSet" and not of_stack:
        return value
    if not of_stack:
        raise ChangeSetNotFound(value)
    return of_stack[-1]


responses.CloudFormationResponse._get_param = get_param


# For the previous value of a parameter moto gives what it resolved, not the name of
# the parameter in Systems Manager that it would resolve again.
stock_parse = parsing.ResourceMap.parse_ssm_parameter


def parse_ssm_parameter(self, value, value_type):
    return stock_parse(self, value, value_type) if value.startswith("/") else value


parsing.ResourceMap.parse_ssm_parameter = parse_ssm_parameter


def template_at(url, account_id, partition):
    """The CDK CLI names templates by path: https://<host>/<bucket>/<key>."""
    bucket, key = url.split("/", 3)[3].split("/", 1)
    return s3_backends[account_id][partition].get_object(bucket, key).value.decode()


responses.get_stack_from_s3_url = template_at

know(Alarm, QueuePolicy, TopicPolicy, Subscription, QueryDefinition, BucketPolicy, Mapping)
main(["-H", HOST, "-p", PORT])
