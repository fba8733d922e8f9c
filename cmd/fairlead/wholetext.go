package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// checkWhole refuses a text that may have lost its end, as the server would: to write it with an end would
// hide that. author is what the author has, next what is to be written, and stored is what it replaces.
func checkWhole(opts manifest.Options, name string, author, next, stored []byte) error {
	if why := lastgood.CutOff(stored, next); why != "" {
		return fmt.Errorf("%s may be cut off, and the server would keep what it lacks: it %s. End it so, or delete the stored one first", name, why)
	}
	if bytes.HasSuffix(author, []byte("\n")) || json.Valid(author) {
		return nil
	}
	if lost := firstLost(opts, stored, author); lost != "" {
		return fmt.Errorf("%s may be cut off: it does not end with a newline, and has no %s, which is there now. End it with a newline if this is meant", name, lost)
	}
	return nil
}

// firstLost is an object of one text that another one does not have; empty if there is none.
func firstLost(opts manifest.Options, had, has []byte) string {
	before, _ := manifest.Decode(opts, "", had)
	after, _ := manifest.Decode(opts, "", has)
	left := map[mesh.Key]bool{}
	for _, o := range after.Objects {
		left[o.Meta.Key] = true
	}
	for _, o := range before.Objects {
		if !left[o.Meta.Key] {
			return o.Meta.String()
		}
	}
	return ""
}
