package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// wholeTexts makes of texts of authors what apply and config push write: with the dates of Gateways, and the line that
// ends a text.
type wholeTexts struct {
	opts manifest.Options
	// others are other sources of the mesh; told says that the command was told of some.
	others *tree
	told   bool
	// stored are all texts that there are, by the names that the new ones have, too.
	stored map[string][]byte
	// label is a name for people.
	label func(name string) string
	// lostEnd reports whether the text of an author had a line that ends it, which is missing now.
	lostEnd func(name string, author, stored []byte) bool
}

// complete replaces the texts. It refuses those that may have lost their end, as the server would: to write one with an
// end would hide that.
func (c wholeTexts) complete(w io.Writer, texts map[string][]byte, now time.Time) error {
	dates := newGatewayDates(c.opts)
	dates.told = c.told
	dates.haveAll(c.others)
	for _, content := range c.stored {
		dates.have(content)
	}
	refused := false
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		author := texts[name]
		stored, there := c.stored[name]
		if there && bytes.Equal(manifest.AsStored(c.opts, author, stored), stored) {
			texts[name] = stored // as config diff says
			continue
		}
		texts[name] = manifest.WithEnd(c.opts, author)
		if why, cure := c.cutOff(name, author, texts[name], stored, there); why != "" {
			refused = true
			_, _ = fmt.Fprintf(w, "%s may be cut off: it %s. If this is meant, %s\n", c.label(name), why, cure)
		}
	}
	if refused {
		_, err := fmt.Fprintln(w, "refused: nothing was written")
		return errors.Join(errInvalid, err)
	}
	dates.write(texts, now)
	dates.report(w)
	return nil
}

// cutOff says why a text may have lost its end, and what to do if it did not; empty if it did not. next is what is to be
// written, and replaces stored, if that is there.
func (c wholeTexts) cutOff(name string, author, next, stored []byte, there bool) (why, cure string) {
	const end = "end it with a newline and the line `...`"
	switch {
	case c.lostEnd(name, author, stored):
		return `does not end with the line "...", as it did`, end
	case !there:
		return "", ""
	}
	if why := lastgood.CutOff(stored, next); why != "" {
		return why + ", and the server would keep what it lacks", "end it so, or delete the stored one first"
	}
	if bytes.HasSuffix(author, []byte("\n")) || json.Valid(author) {
		return "", ""
	}
	if lost := firstLost(c.opts, stored, author); lost != "" {
		return fmt.Sprintf("does not end with a newline, and has no %s, which is there now", lost), "end it with a newline"
	}
	return "", ""
}

// beginsStored reports whether a text without the line that ends it is the beginning of the stored one, which has that line.
func beginsStored(opts manifest.Options, author, stored []byte) bool {
	return manifest.Ended(stored) && !manifest.Ended(author) && lastgood.Begins(stored, manifest.WithGatewayDates(opts, author, manifest.GatewayDates(opts, stored)))
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
