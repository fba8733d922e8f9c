package codes

// Codes of what one document says.
const (
	Syntax        = "FL0101"
	DuplicateKey  = "FL0102"
	Value         = "FL0103"
	Limit         = "FL0104"
	Kind          = "FL0105"
	Metadata      = "FL0106"
	Namespace     = "FL0107"
	UnknownField  = "FL0110"
	Type          = "FL0111"
	Required      = "FL0112"
	Enum          = "FL0113"
	Bounds        = "FL0114"
	Format        = "FL0115"
	OneOf         = "FL0116"
	DuplicateItem = "FL0117"
	Rule          = "FL0118"
	Webhook       = "FL0120"
	NotInForce    = "FL0130"
	NoEffect      = "FL0131"
	Blank         = "FL0150"
	LostSelector  = "FL0190"
	LostCondition = "FL0191"
)

// Codes of objects that are refused because of what they cost: each is one of [Limits].
const (
	Expansion    = "FL0140"
	HashTables   = "FL0231"
	Expression   = "FL0234"
	SourceExcess = "FL0311"
)

// Limits are the codes of what an upgrade can take, since releases before had no limit of it.
func Limits() []string { return []string{Expansion, HashTables, Expression, SourceExcess} }

// Codes of one object, of what becomes of it for Envoys.
const (
	Untranslatable = "FL0132"
)

// Codes of the mesh as a whole.
const (
	UnknownHost         = "FL0201"
	UnknownSubset       = "FL0202"
	UnknownPort         = "FL0203"
	RouteWithoutService = "FL0204"
	RuleWithoutService  = "FL0205"
	EmptySubset         = "FL0206"
	SelectsNothing      = "FL0207"
	NoEndpoints         = "FL0208"
	WorkloadUnused      = "FL0209"
	HostTwice           = "FL0210"
	RuleTwice           = "FL0211"
	EgressNothing       = "FL0212"
	AnyIdentity         = "FL0213"
	PortName            = "FL0214"
	PortNotServed       = "FL0215"
	DefaultTwice        = "FL0216"
	Weights             = "FL0217"
	KeyTwice            = "FL0218"
	UnknownGateway      = "FL0219"
	UnknownDelegate     = "FL0220"
	CatalogHost         = "FL0221"
	CatalogsDiffer      = "FL0222"
	ForeignHost         = "FL0226"
	ForeignCredential   = "FL0232"
	ForeignRoute        = "FL0233"
	IngressBind         = "FL0240"
	Denies              = "FL0241"
	UnknownIdentity     = "FL0250"
	PathSlash           = "FL0251"
	PathNever           = "FL0252"
	NeverOnTCP          = "FL0253"
	NoClaims            = "FL0254"
	Shadowed            = "FL0255"
	LongLived           = "FL0256"
	NoProvider          = "FL0257"
	NoReportProvider    = "FL0258"
	ReportKind          = "FL0259"
	ReportService       = "FL0260"
	AddressTaken        = "FL0261"
	TakesStrangers      = "FL0262"
	ServerLeftOut       = "FL0264"
	GatewayHosts        = "FL0265"
	CredentialUnused    = "FL0271"
)

// Codes of the mesh with a catalog, as the command line asks for it.
const (
	Denied     = "FL0223"
	More       = "FL0224"
	Unreadable = "FL0225"
)

// Codes of the mesh as proxies see it.
const (
	CannotCall = "FL0242"
	HeardLate  = "FL0263"
	// LeftOutDelegate: a VirtualService does not include a delegate, because that would be too much.
	LeftOutDelegate = "FL0235"
	// NoNetworkGateway: a network of a workload has no gateway.
	NoNetworkGateway = "FL0266"
	// PlaintextAcross: a workload is left out in other networks, because it takes no mTLS.
	PlaintextAcross = "FL0267"
	// UnknownRegistry: fromRegistry of a network is the source of nothing.
	UnknownRegistry = "FL0272"
	// IngressTLS: tls of an ingress listener has no effect.
	IngressTLS = "FL0270"
)

// Codes of texts with objects in them, of any source.
const (
	SourceTwice  = "FL0301"
	SourceUnread = "FL0302"
	SourceKept   = "FL0303"
	SourceState  = "FL0305"
	SourceDenies = "FL0308"
	SourceCut    = "FL0309"
)

// Codes of directories of files.
const (
	FilesRestless = "FL0304"
	FilesLink     = "FL0307"
	FilesLoss     = "FL0310"
)

// Codes of keys of Consul.
const (
	KVNoKeys = "FL0306"
)

// Codes of registrations in a catalog.
const (
	RegistrationName      = "FL0601"
	RegistrationHost      = "FL0602"
	RegistrationIdentity  = "FL0603"
	RegistrationDisagrees = "FL0604"
	RegistrationAddress   = "FL0605"
	RegistrationPort      = "FL0606"
	RegistrationPorts     = "FL0607"
	RegistrationProtocol  = "FL0608"
	RegistrationLabels    = "FL0609"
	RegistrationTwice     = "FL0610"
	RegistrationVirtual   = "FL0611"
	RegistrationForeign   = "FL0612"
	RegistrationValue     = "FL0613"
	RegistrationExternal  = "FL0614"
	RegistrationOpaque    = "FL0615"
)
