# SPDX-License-Identifier: Apache-2.0
"""The health and reflection services of a server, asked by the gRPC library that everybody uses."""

import itertools
import queue
import types

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from reverb import testing
from reverb.core import protos
from support.waiting import DEADLINE_S

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
SERVICES = [
    "deepmind.reverb.ReverbService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "reverb.ReplayService",
]

health = types.SimpleNamespace(**protos.messages_of("grpc/health/v1/health.proto"))
reflection = types.SimpleNamespace(**protos.messages_of("grpc/reflection/v1/reflection.proto"))


@pytest.fixture
def server(start):
    return start(testing.table("a"), testing.table("b"), host="127.0.0.1")


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


def check(channel, service):
    method = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health.HealthCheckRequest.SerializeToString,
        response_deserializer=health.HealthCheckResponse.FromString,
    )
    return method(health.HealthCheckRequest(service=service), timeout=DEADLINE_S).status


def watch(channel, service):
    method = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health.HealthCheckRequest.SerializeToString,
        response_deserializer=health.HealthCheckResponse.FromString,
    )
    return method(health.HealthCheckRequest(service=service), timeout=DEADLINE_S)


@pytest.fixture(params=["v1", "v1alpha"])
def reflect(channel, request):
    """Asks one question: `reflect(list_services="")`."""
    method = channel.stream_stream(
        f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection.ServerReflectionResponse.FromString,
    )

    def reflect(**question):
        requests = [reflection.ServerReflectionRequest(**question)]
        (answer,) = method(iter(requests), timeout=DEADLINE_S)
        assert answer.original_request == requests[0]
        return answer

    return reflect


@pytest.mark.parametrize("service", ["", *SERVICES])
def test_a_server_that_answers_is_serving(channel, service):
    assert check(channel, service) == SERVING


def test_who_watches_learns_that_the_server_stops(server, channel):
    known, unknown = watch(channel, SERVICES[0]), watch(channel, "nonsense")
    assert next(known).status == SERVING
    assert next(unknown).status == SERVICE_UNKNOWN
    server.stop()
    assert next(known).status == NOT_SERVING
    for stream in (known, unknown):
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "The server is stopping."


def test_a_tool_can_call_a_server_of_which_it_knows_nothing(reflect, channel):
    answer = reflect(file_containing_symbol="deepmind.reverb.ReverbService")
    files = {}
    for data in answer.file_descriptor_response.file_descriptor_proto:
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        files[file.name] = file
    pool = descriptor_pool.DescriptorPool()

    def add(name):
        if name in files:
            file = files.pop(name)
            for dependency in file.dependency:
                add(dependency)
            pool.Add(file)

    for name in list(files):
        add(name)
    method = pool.FindMethodByName("deepmind.reverb.ReverbService.ServerInfo")
    request, response = map(
        message_factory.GetMessageClass, (method.input_type, method.output_type)
    )
    call = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    info = call(request(), timeout=DEADLINE_S)
    assert [table.name for table in info.table_info] == ["a", "b"]


def test_a_server_stops_while_a_tool_holds_its_stream_open(server, channel):
    method = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    first = reflection.ServerReflectionRequest(list_services="").SerializeToString()
    more = queue.SimpleQueue()
    stream = method(itertools.chain([first], iter(more.get, None)), timeout=DEADLINE_S)
    answer = reflection.ServerReflectionResponse.FromString(next(stream))
    assert answer.HasField("list_services_response")
    server.stop()
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    more.put(None)
