package view

import (
	"cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

// comparePrecedence is the order in which services win conflicts.
func comparePrecedence(a, b *mesh.Service) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Hostname, b.Hostname),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func compareMeta(a, b *mesh.Meta) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	default:
		return 0
	}
}

func compareAge(a, b *virtualService) int { return compareMeta(&a.Meta, &b.Meta) }
