package manifest

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// Place is where an object begins in a text.
type Place struct{ Line, Column int }

// maxPieceLines bounds the empty lines before a piece.
const maxPieceLines = 4096

// Pieces are texts of the objects at some places of a text: each decodes to the object, with the same line if
// that is not far down, and has nothing else of the text. What cannot be written so is missing.
func Pieces(content []byte, places map[Place]bool) map[Place][]byte {
	out := make(map[Place][]byte, len(places))
	for _, doc := range tree.Parse(content) {
		eachObject(doc.Root, func(o *tree.Node) {
			at := Place{o.Pos.Line, o.Pos.Column}
			if !places[at] {
				return
			}
			if text := piece(o); text != nil {
				out[at] = text
			}
		})
	}
	return out
}

// Document is the text of the document that has a line, as it is written: for an object that is broken.
func Document(content []byte, line int) []byte {
	text, before := tree.DocumentAt(content, line)
	return append(bytes.Repeat([]byte("\n"), min(before, maxPieceLines)), text...)
}

// eachObject calls do for a document, or for the items of one that is a list.
func eachObject(root *tree.Node, do func(*tree.Node)) {
	switch {
	case root == nil || root.Kind != tree.Map:
	case isList(root):
		if items := root.Get("items"); items != nil {
			for _, item := range items.Items {
				eachObject(item, do)
			}
		}
	default:
		do(root)
	}
}

func isList(root *tree.Node) bool {
	return root.Str("kind") == "List" && root.Str("apiVersion") == "v1"
}

// piece is an object as JSON, which is YAML, too; nil if it would not be read as the same.
func piece(o *tree.Node) []byte {
	text, err := json.Marshal(o.JSON())
	if err != nil {
		return nil
	}
	again := tree.Parse(text)
	if len(again) != 1 || again[0].Root == nil || len(again[0].Problems) > 0 || !reflect.DeepEqual(again[0].Root.JSON(), o.JSON()) {
		return nil
	}
	return append(bytes.Repeat([]byte("\n"), min(o.Pos.Line-1, maxPieceLines)), text...)
}
