package server

import (
	"fmt"

	"github.com/fairlead/fairlead/registry"
)

// saved is a source that has on disk what is to survive a restart. All sources are.
type saved interface {
	registry.Source
	// Unsaved says why the disk does not have what is in force, or is empty.
	Unsaved() string
}

// savedSources are all sources; New has made them.
func (s *Server) savedSources() []saved {
	var out []saved
	list, _ := s.sourceList()
	if s.agents != nil { // asked during the start
		list = append(list, s.agents)
	}
	for _, src := range list {
		if x, ok := src.(saved); ok {
			out = append(out, x)
		}
	}
	return out
}

// unsaved reports sources whose state in force is not saved: it is
// served all the same.
func (s *Server) unsaved() []string {
	var out []string
	for _, src := range s.savedSources() {
		if why := src.Unsaved(); why != "" {
			out = append(out, fmt.Sprintf("source %s is not saved (in use; a restart uses the last saved version until the source is read): %s", src.Name(), why))
		}
	}
	if why := s.keys.Unsaved(); why != "" {
		out = append(out, "saving the keys of issuers failed: while an issuer is away, a restarted server may refuse its tokens: "+why)
	}
	if why := s.registry.Status().GrantsUnsaved; why != "" {
		out = append(out, "saving host-grants.json failed: after a restart hosts may be limited to their namespaces: "+why)
	}
	if why := s.registry.Status().AddressesUnsaved; why != "" {
		out = append(out, "saving host-addresses.json failed: after a restart hosts may get other addresses: "+why)
	}
	if why := s.names.Unsaved(); why != "" {
		out = append(out, "saving gateway-addresses.json failed: after a restart gateways of networks may have no addresses: "+why)
	}
	return out
}
