"""Maps exception classes to details, by name. No library is imported, and a class imported twice is still known.

Names are `module.Class`. Private modules do not count (`openai._exceptions.X` is `openai.X`), `httpx2` is `httpx`, and
a class whose library moved it to another module is found by its package and name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from redrive.failures.classify.codes import read_details

TWINS: Final = {"httpx2": "httpx", "httpcore2": "httpcore"}
"""Packages that are the same library under another name."""
_SHARED_PACKAGES: Final = frozenset({"google", "azure"})
"""Packages that belong to many libraries: the second part of such a name counts, too."""


def _read_table(text: str) -> dict[str, str]:
    """Reads rows of a module and of its classes by detail: `module detail=Class,Class detail=Class`."""
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    read = [(row[0], read_details(row[1])) for row in rows]
    return {f"{module}.{name}": detail for module, details in read for name, detail in details.items()}


FIRM_CLASSES: Final = _read_table("""
    # control flow
    langgraph.errors suspended=GraphInterrupt released=GraphDrained
    pydantic_ai.exceptions suspended=ApprovalRequired,CallDeferred
    mcp.shared.exceptions suspended=UrlElicitationRequiredError
    # unknown whether the effect landed
    redrive.errors outcome_unknown=OutcomeUnknown,CommitUnknown
    # the others, by library
    redrive.errors own_limits=StoreFull contention=StoreUnavailable,StaleJob server_error=StoreFailed
    redrive.errors invalid_input=InvalidInput,ConfigError data_integrity=JobNotFound
    builtins own_limits=MemoryError
    anthropic timeout=APITimeoutError network=APIConnectionError server_error=RetryableError
    anthropic credentials=CredentialsError,WorkloadIdentityError
    anthropic quota=EnforcedSpendLimitReachedError,OrganizationOnHoldError
    anthropic authority=CMEKKeyDisabledError,CMEKKeyNetworkBlockedError,OrganizationTypeNotSupportedError
    anthropic invalid_input=APIWebhookValidationError bug=StreamAlreadyConsumed
    openai timeout=APITimeoutError network=APIConnectionError,WebSocketConnectionClosedError
    openai token_budget=LengthFinishReasonError refusal=ContentFilterFinishReasonError
    openai invalid_input=InvalidWebhookSignatureError contention=WebSocketQueueFullError
    openai bug=_AmbiguousModuleClientUsageError,StreamAlreadyConsumed,MissingDependencyError
    openai.lib bug=APIRemovedInV1
    anthropic.lib bug=MissingDependencyError
    google.genai.errors invalid_output=UnknownFunctionCallArgumentError,FunctionInvocationError
    google.genai.errors bug=UnsupportedFunctionError server_error=UnknownApiResponseError
    google.auth.exceptions network=TransportError timeout=TimeoutError server_error=ResponseError
    google.auth.exceptions credentials=GoogleAuthError
    google.api_core.exceptions bug=DuplicateCredentialArgs
    litellm.exceptions timeout=Timeout network=APIConnectionError context_overflow=ContextWindowExceededError
    litellm.exceptions token_budget=BudgetExceededError quota=PaymentRequiredError refusal=ContentPolicyViolationError
    litellm.exceptions authority=RejectedRequestError,GuardrailRaisedException,BlockedPiiEntityError
    litellm.exceptions invalid_input=UnsupportedParamsError,LiteLLMUnknownProvider,ModelNotMappedError
    litellm.exceptions invalid_output=JSONSchemaValidationError
    pydantic_ai.exceptions rate_limited=ModelRateLimitError provider_overloaded=ModelOverloadedError
    pydantic_ai.exceptions timeout=ModelTimeoutError,ModelRequestTimeout,RunTimedOut network=ModelConnectionError
    pydantic_ai.exceptions contention=ConcurrencyLimitExceeded context_overflow=ModelContextWindowExceededError
    pydantic_ai.exceptions quota=ModelQuotaExceededError token_budget=UsageLimitExceeded,IncompleteToolCall
    pydantic_ai.exceptions refusal=ContentFilterError invalid_output=UnexpectedModelBehavior,ModelRetry,ToolRetryError
    pydantic_ai.exceptions data_integrity=ModelNotFoundError,SuspendedResponseExpired bug=UserError
    agents.exceptions timeout=ToolTimeoutError,ModelTimeoutError network=MCPToolCancellationError
    agents.exceptions token_budget=MaxTurnsExceeded refusal=ModelRefusalError invalid_output=ModelBehaviorError
    agents.exceptions authority=InputGuardrailTripwireTriggered,OutputGuardrailTripwireTriggered
    agents.exceptions authority=ToolInputGuardrailTripwireTriggered,ToolOutputGuardrailTripwireTriggered bug=UserError
    langgraph.errors timeout=NodeTimeoutError token_budget=GraphRecursionError
    langgraph.errors bug=InvalidUpdateError,ParentCommand,EmptyChannelError
    langgraph.errors invalid_input=EmptyInputError,UnknownInterruptError data_integrity=TaskNotFound
    langgraph.checkpoint.base bug=EmptyChannelError
    langchain_core.exceptions context_overflow=ContextOverflowError invalid_output=OutputParserException
    langchain_core.exceptions rate_limited=ModelRateLimitError timeout=ModelTimeoutError network=ModelConnectionError
    claude_agent_sdk dependency_gone=CLINotFoundError network=CLIConnectionError,CLIJSONDecodeError
    claude_agent_sdk server_error=MessageParseError
    mcp.client.auth.exceptions credentials=OAuthFlowError
    mcp.client.streamable_http network=StreamableHTTPError
    mcp.client.subscriptions network=SubscriptionLost invalid_input=ListenNotSupportedError
    mcp.server.mcpserver.exceptions data_integrity=ResourceNotFoundError
    httpx timeout=TimeoutException invalid_input=UnsupportedProtocol,LocalProtocolError,TooManyRedirects,InvalidURL
    httpx network=TransportError,DecodingError bug=CookieConflict,StreamError
    httpcore timeout=TimeoutException
    httpcore network=NetworkError,ProxyError,RemoteProtocolError,ConnectionNotAvailable,ProtocolError
    httpcore invalid_input=UnsupportedProtocol,LocalProtocolError
    aiohttp.client_exceptions timeout=ServerTimeoutError
    aiohttp.client_exceptions authority=ClientConnectorCertificateError,ServerFingerprintMismatch
    aiohttp.client_exceptions network=ClientConnectionError,ClientPayloadError,UploadAbortedError
    aiohttp.client_exceptions invalid_input=InvalidURL,NonHttpUrlClientError,RedirectClientError,TooManyRedirects
    aiohttp.http_exceptions network=HttpProcessingError
    requests.exceptions timeout=ConnectTimeout,Timeout authority=SSLError
    requests.exceptions network=ConnectionError,ChunkedEncodingError,ContentDecodingError
    requests.exceptions invalid_input=InvalidJSONError,MissingSchema,InvalidSchema,InvalidURL,InvalidHeader
    requests.exceptions invalid_input=URLRequired,TooManyRedirects bug=StreamConsumedError,UnrewindableBodyError
    urllib3.exceptions network=NewConnectionError,ProxyError,ProtocolError,DecodeError,HeaderParsingError
    urllib3.exceptions network=IncompleteRead,InvalidChunkLength timeout=TimeoutError authority=SSLError
    urllib3.exceptions bug=TimeoutStateError,ClosedPoolError,HostChangedError,UnrewindableBodyError
    urllib3.exceptions contention=EmptyPoolError,FullPoolError
    urllib3.exceptions invalid_input=LocationValueError,InvalidHeader,ProxySchemeUnknown,ProxySchemeUnsupported
    botocore.exceptions timeout=ReadTimeoutError,ConnectTimeoutError,WaiterError
    botocore.exceptions authority=SSLError,LoginInsufficientPermissions
    botocore.exceptions network=ConnectionError,HTTPClientError,IncompleteReadError,ChecksumError
    botocore.exceptions network=FlexibleChecksumError,MetadataRetrievalError rate_limited=CapacityNotAvailableError
    botocore.exceptions credentials=NoCredentialsError,PartialCredentialsError,CredentialRetrievalError
    botocore.exceptions credentials=UnknownCredentialError,NoAuthTokenError,TokenRetrievalError
    botocore.exceptions credentials=RefreshWithMFAUnsupportedError,ProfileNotFound,SSOError,LoginError
    botocore.exceptions credentials_expired=UnauthorizedSSOTokenError,LoginRefreshRequired
    botocore.exceptions bug=MissingDependencyException,UnknownClientMethodError,OperationNotPageableError
    botocore.exceptions bug=StubResponseError
    botocore.exceptions invalid_input=ParamValidationError,ValidationError,MissingParametersError,BotoCoreError
    botocore.parsers server_error=ResponseParserError
    botocore.eventstream network=ParserError
    github.GithubException rate_limited=RateLimitExceededException
    github.GithubException credentials=BadCredentialsException,TwoFactorException
    github.GithubException data_integrity=UnknownObjectException,BadAttributeException,IncompletableObject
    github.GithubException invalid_input=BadUserAgentException
    githubkit.exception rate_limited=RateLimitExceeded timeout=RequestTimeout credentials_expired=AuthExpiredError
    githubkit.exception credentials=AuthCredentialError invalid_input=WebhookTypeNotFound
    githubkit.exception bug=CacheUnsupportedError,GraphQLPaginationError
    kubernetes.client.exceptions invalid_input=ApiTypeError,ApiValueError,ApiAttributeError,ApiKeyError
    kubernetes.config.config_exception credentials=ConfigException
    redis.exceptions credentials=AuthenticationError,AuthenticationWrongNumberOfArgsError,ExternalAuthProviderError
    redis.exceptions authority=AuthorizationError,NoPermissionError
    redis.exceptions contention=BusyLoadingError,MaxConnectionsError,OutOfMemoryError,ReadOnlyError,TryAgainError
    redis.exceptions contention=AskError,WatchError,LockError,ChildDeadlockedError
    redis.exceptions network=ConnectionError,InvalidResponse,RedisClusterException timeout=TimeoutError
    redis.exceptions server_error=ClusterDownError,SlotNotCoveredError,ClusterError
    redis.exceptions bug=ClusterCrossSlotError,CrossSlotTransactionError,InvalidPipelineStack,PubSubError
    redis.exceptions data_integrity=NoScriptError invalid_input=DataError
    redis.multidb.exception server_error=TemporaryUnavailableException network=NoValidDatabaseException
    # databases; most are known by their sqlstate
    sqlalchemy.exc timeout=TimeoutError network=DisconnectionError invalid_input=IntegrityError,DataError
    sqlalchemy.exc data_integrity=NoResultFound,MultipleResultsFound
    sqlalchemy.exc bug=ArgumentError,CompileError,InvalidRequestError contention=PendingRollbackError
    sqlalchemy.orm.exc contention=StaleDataError bug=DetachedInstanceError,FlushError
    psycopg.errors timeout=ConnectionTimeout,CancellationTimeout contention=PipelineAborted
    psycopg.errors invalid_input=IntegrityError,DataError bug=ProgrammingError network=InterfaceError
    psycopg_pool timeout=PoolTimeout contention=TooManyRequests
    psycopg2.errors invalid_input=IntegrityError
    psycopg2 invalid_input=IntegrityError network=InterfaceError
    asyncpg.exceptions bug=InterfaceError network=InternalClientError
    sqlite3 invalid_input=IntegrityError bug=ProgrammingError,InterfaceError
    apsw contention=BusyError,LockedError,FullError,NoMemError,ProtocolError,SchemaChangeError
    apsw invalid_input=ConstraintError,MismatchError,TooBigError server_error=IOError
    apsw data_integrity=CorruptError,NotADBError authority=ReadOnlyError,AuthError,PermissionsError
    apsw dependency_gone=CantOpenError timeout=InterruptError
    apsw bug=SQLError,BindingsError,MisuseError,RangeError,ConnectionClosedError,CursorClosedError
    apsw bug=ThreadingViolationError
    nats.errors timeout=TimeoutError credentials=AuthorizationError,InvalidUserCredentialsError
    nats.errors network=NoServersError,StaleConnectionError,ConnectionClosedError,ConnectionDrainingError
    nats.errors network=ConnectionReconnectingError,ProtocolError,SecureConnFailedError,JsonParseError
    nats.errors server_error=NoRespondersError contention=OutboundBufferLimitError,SlowConsumerError
    nats.errors invalid_input=MaxPayloadError,BadSubjectError,BadHeaderError,BadTimeoutError,SecureConnRequiredError
    nats.errors invalid_input=SecureConnWantedError
    nats.errors bug=BadSubscriptionError,InvalidCallbackTypeError,NotJSMessageError,MsgAlreadyAckdError
    nats.js.errors contention=KeyWrongLastSequenceError,TooManyStalledMsgsError,ConsumerSequenceMismatchError
    nats.js.errors server_error=ServiceUnavailableError,ServerError,NoStreamResponseError
    nats.js.errors data_integrity=NotFoundError,NoKeysError,DigestMismatchError,BadObjectMetaError,ObjectAlreadyExists
    nats.js.errors invalid_input=KeyHistoryTooLargeError,InvalidKeyError,InvalidBucketNameError,InvalidObjectNameError
    nats.js.errors invalid_input=LinkIsABucketError
    grpc timeout=FutureTimeoutError
    pydantic.errors bug=PydanticUserError
    jsonschema.exceptions bug=SchemaError
    instructor.core.exceptions token_budget=IncompleteOutputException invalid_output=InstructorRetryException
    # the network, lower layers
    ssl authority=SSLCertVerificationError network=SSLError
    socket network=gaierror,herror
    http.client invalid_input=InvalidURL bug=ImproperConnectionState network=HTTPException
    h11 network=RemoteProtocolError
    h2.exceptions network=ProtocolError
    websockets.exceptions network=ConnectionClosed,ProtocolError,InvalidMessage invalid_input=InvalidURI,PayloadTooBig
    websockets.exceptions bug=ConcurrencyError
    anyio network=BrokenResourceError,ClosedResourceError,EndOfStream,IncompleteRead,ConnectionFailed
    anyio contention=WouldBlock
    asyncio.exceptions network=IncompleteReadError bug=InvalidStateError
    asyncio.queues contention=QueueFull
    queue contention=Full
    smtplib network=SMTPServerDisconnected,SMTPConnectError credentials=SMTPAuthenticationError
    smtplib invalid_input=SMTPNotSupportedError
    jwt.exceptions credentials_expired=ExpiredSignatureError credentials=InvalidTokenError,InvalidKeyError
    ftplib server_error=error_temp invalid_input=error_perm network=error_reply,error_proto
    imaplib.IMAP4 network=abort
    subprocess timeout=TimeoutExpired
    concurrent.futures server_error=BrokenExecutor bug=InvalidStateError
""")
"""Classes that decide the detail even if a status comes with them."""

UNFIT: Final = "unfit"
"""Mark of UNFIT_CLASSES in the index. The mark is no detail: a rule checks first whether a model was asked."""
UNFIT_CLASSES: Final = (
    "json.decoder.JSONDecodeError",
    "requests.exceptions.JSONDecodeError",
    "msgspec.ValidationError",
    "msgspec.DecodeError",
    "pydantic_core.ValidationError",
    "pydantic.v1.error_wrappers.ValidationError",
    "jsonschema.exceptions.ValidationError",
    "xml.etree.ElementTree.ParseError",
    "yaml.error.YAMLError",
    "tomllib.TOMLDecodeError",
)
"""Classes for data that cannot be read or does not fit: invalid_output if a model was asked, else unknown."""

STATUS_CLASSES: Final = _read_table("""
    # classes that stand for a status: a status from the answer is more exact
    anthropic invalid_input=BadRequestError,UnprocessableEntityError credentials=AuthenticationError
    anthropic authority=PermissionDeniedError data_integrity=NotFoundError
    anthropic timeout=RequestTimeoutError,GatewayTimeoutError contention=ConflictError
    anthropic context_overflow=ContentTooLargeError rate_limited=RateLimitError provider_overloaded=OverloadedError
    anthropic server_error=APIError
    openai invalid_input=BadRequestError,UnprocessableEntityError
    openai credentials=AuthenticationError,SubjectTokenProviderError authority=PermissionDeniedError
    openai data_integrity=NotFoundError contention=ConflictError rate_limited=RateLimitError server_error=APIError
    litellm.exceptions server_error=ServiceUnavailableError,BadGatewayError
    google.genai.errors invalid_input=ClientError server_error=APIError
    google.api_core.exceptions network=TransferStalledError,UploadCancelledError server_error=ServerError
    google.api_core.exceptions invalid_input=ClientError
    pydantic_ai.exceptions server_error=ModelUnavailableError,ModelServerError credentials=ModelAuthenticationError
    pydantic_ai.exceptions invalid_input=ModelRequestRejectedError
    langchain_core.exceptions credentials=ModelAuthenticationError authority=ModelPermissionDeniedError
    langchain_core.exceptions data_integrity=ModelNotFoundError invalid_input=ModelInvalidRequestError
    langchain_core.exceptions server_error=ModelAPIError
    aiohttp.client_exceptions network=ClientHttpProxyError server_error=WSServerHandshakeError,ContentTypeError
    kubernetes.client.exceptions server_error=ServiceException network=ApiException
    kubernetes_asyncio.client.exceptions network=ApiException
    nats.js.errors invalid_input=BadRequestError,BadBucketError
    redis.exceptions invalid_input=ResponseError
    psycopg.errors network=OperationalError
    psycopg2 network=OperationalError
    sqlalchemy.exc bug=ProgrammingError
    # wrappers that say less than the wrapped exception
    urllib.error network=URLError
    urllib3.exceptions network=MaxRetryError
    requests.exceptions server_error=RetryError
    # Python's own
    builtins timeout=TimeoutError network=ConnectionError
    builtins data_integrity=FileNotFoundError,FileExistsError,NotADirectoryError,IsADirectoryError
    builtins authority=PermissionError contention=BlockingIOError
    builtins bug=TypeError,AttributeError,NameError,ImportError,AssertionError,SyntaxError,NotImplementedError
    builtins bug=RecursionError
""")
"""Classes that count only where no status says more."""

CLASSES: Final[dict[str, str]] = FIRM_CLASSES | dict.fromkeys(UNFIT_CLASSES, "invalid_output") | STATUS_CLASSES

MODEL_PACKAGES: Final = frozenset(
    {
        "anthropic", "openai", "litellm", "google.genai", "pydantic_ai", "agents", "langchain_core", "langchain_openai",
        "langchain_anthropic", "claude_agent_sdk", "mistralai", "cohere", "groq", "together", "huggingface_hub",
    }
)  # fmt: skip
"""Libraries that call models and little else."""


def canonical(name: str) -> str:
    """Returns the name under which a class is listed: without private modules, a renamed twin as the original."""
    package, *path = name.split(".")
    return ".".join(
        [TWINS.get(package, package), *(part for part in path[:-1] if not part.startswith("_")), *path[-1:]]
    )


def package_of(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in _SHARED_PACKAGES else TWINS.get(first, first)


def name_in_package(name: str) -> str:
    """Returns package and class alone, which stay when a library moves a class to another module."""
    return f"{package_of(name)} {name.rpartition('.')[2]}"


def _index(table: Mapping[str, str]) -> dict[str, str]:
    index = {canonical(name): detail for name, detail in table.items()}
    by_package: dict[str, set[str]] = {}
    for name, detail in table.items():
        by_package.setdefault(name_in_package(name), set()).add(detail)
    return index | {name: details.pop() for name, details in by_package.items() if len(details) == 1}


_FIRM_CLASSES: Final = _index(FIRM_CLASSES | dict.fromkeys(UNFIT_CLASSES, UNFIT))
_STATUS_CLASSES: Final = _index(STATUS_CLASSES)


def _look_up(types: Iterable[str], table: Mapping[str, str]) -> str | None:
    for name in types:
        detail = table.get(canonical(name)) or table.get(name_in_package(name))
        if detail is not None:
            return detail
    return None


@lru_cache(maxsize=2048)
def class_detail(types: tuple[str, ...]) -> str | None:
    """Returns the detail of the most specific known class of an MRO, or UNFIT."""
    return _look_up(types, _FIRM_CLASSES)


@lru_cache(maxsize=2048)
def status_class_detail(types: tuple[str, ...]) -> str | None:
    return _look_up(types, _STATUS_CLASSES)


@lru_cache(maxsize=2048)
def calls_models(types: tuple[str, ...]) -> bool:
    """Returns whether an exception comes from a library that calls models."""
    return any(package_of(name) in MODEL_PACKAGES for name in types)
