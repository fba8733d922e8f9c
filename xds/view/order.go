package view

import (
	"cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

// byPrecedence is the order in which services win conflicts.
func byPrecedence(a, b *mesh.Service) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Hostname, b.Hostname),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func before(a, b *mesh.Meta) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	default:
		return 0
	}
}

func byAgeOfRoutes(a, b *virtualService) int { return before(&a.Meta, &b.Meta) }
