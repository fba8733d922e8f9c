package mapping

import (
	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Config says how the catalog looks in the mesh.
type Config struct{}

// Mapper maps services. It may be used from any goroutine.
type Mapper struct{}

// New checks the configuration.
func New(Config) (*Mapper, error) { return &Mapper{}, nil }

// Input is what the catalog says of one service.
type Input struct {
	// Source is the name of the registry source.
	Source                                    string
	Service, Namespace, Partition, Datacenter string
	// Local says that the datacenter is that of the mesh's own servers.
	Local   bool
	Entries []*api.ServiceEntry
	// Protocol is Connect's default for the service, or empty.
	Protocol string
}

// Result is what becomes of it.
type Result struct {
	// Piece is sorted.
	Piece *mesh.Fragment
	Notes []Note
}

// Note says what was left out, and why.
type Note struct {
	Code, Service, Instance, Message string
}

// Map maps one service.
func (m *Mapper) Map(in *Input) Result {
	return Result{Piece: &mesh.Fragment{Source: in.Source}}
}
