package mesh

// Labels of workloads that come from a catalog. The catalog source alone gives
// them: no registration can set a label with their prefix. A manifest may: a
// WorkloadEntry with LabelConsulService is one more instance of that service.
const (
	// LabelConsulPrefix begins the name of every label that is reserved for the
	// source.
	LabelConsulPrefix = "consul.fairlead.io/"
	// LabelConsulService is the service that the workload is an instance of. A
	// workload that has it is selected only by services whose selector has it:
	// what its registration says of it in other labels cannot put it behind a
	// service that did not ask for instances of the catalog.
	LabelConsulService = LabelConsulPrefix + "service"
	// LabelConsulDatacenter is the datacenter that the instance is registered in.
	LabelConsulDatacenter = LabelConsulPrefix + "datacenter"
	// LabelConsulNode is the name of the catalog's node that has the instance.
	LabelConsulNode = LabelConsulPrefix + "node"
)
