(** * Building right-hand sides in a graph

    The nodes of a right-hand side are appended to a graph, under the nodes that its variables stand
    for.  One record says all that is true of the result: what it extends, what the new nodes use, and
    what they denote, whatever becomes of the old nodes. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Dag Templates.

(** ** Extensions of a graph *)

Definition extension (g g' : dag) : Prop := exists e, g' = g ++ e.

Lemma extension_refl g : extension g g.
Proof. exists []. now rewrite app_nil_r. Qed.

Lemma extension_snoc g n : extension g (g ++ [n]).
Proof. now exists [n]. Qed.

Lemma extension_trans g1 g2 g3 : extension g1 g2 -> extension g2 g3 -> extension g1 g3.
Proof. intros [e ->] [e' ->]. exists (e ++ e'). now rewrite app_assoc. Qed.

Lemma extension_length g g' : extension g g' -> length g <= length g'.
Proof. intros [e ->]. rewrite app_length. lia. Qed.

Lemma extension_old g g' k : extension g g' -> k < length g -> nth_error g' k = nth_error g k.
Proof. intros [e ->] L. now apply nth_error_app1. Qed.

Lemma extension_node g g' k n : extension g g' -> nth_error g k = Some n -> nth_error g' k = Some n.
Proof.
  intros X N. rewrite (extension_old g g' k X); auto. apply nth_error_Some. congruence.
Qed.

(** ** Emission *)

(** Append the nodes for several templates, and return their identifiers. *)
Section EmitAll.
Variable emit : template -> dag -> option (dag * nat).

Fixpoint emit_all (rs : list template) (g : dag) : option (dag * list nat) :=
  match rs with
  | [] => Some (g, [])
  | r :: rs =>
      match emit r g with
      | Some (g1, j) =>
          match emit_all rs g1 with
          | Some (g2, js) => Some (g2, j :: js)
          | None => None
          end
      | None => None
      end
  end.
End EmitAll.

Definition add_node (f : op) (o : option (dag * list nat)) : option (dag * nat) :=
  match o with
  | Some (g, js) => Some (g ++ [(f, js)], length g)
  | None => None
  end.

(** [emit allowed θ r g] appends the nodes for [r] to [g], and returns the identifier of its root.
    It checks that what a variable is bound to is allowed in a right-hand side. *)
Fixpoint emit {Δ : Domain} (allowed : nat -> bool) (θ : env nat) (r : template) (g : dag)
    : option (dag * nat) :=
  match r with
  | TVar x =>
      match θ x with
      | Some (VTerm i) => if allowed i then Some (g, i) else None
      | _ => None
      end
  | TOp f rs => add_node f (emit_all (emit allowed θ) rs g)
  | TFun F rs =>
      match θ F with
      | Some (VOp f) => add_node f (emit_all (emit allowed θ) rs g)
      | _ => None
      end
  end.

(** ** What is true of the result *)

(** A node may use what is allowed, and new nodes before it; new nodes begin at [n]. *)
Definition usable (allowed : nat -> bool) (n k c : nat) : Prop := allowed c = true \/ n <= c < k.

Definition new_nodes_ok (allowed : nat -> bool) (n : nat) (g : dag) : Prop :=
  forall k f cs c, n <= k -> nth_error g k = Some (f, cs) -> In c cs -> usable allowed n k c.

Lemma usable_le allowed n k k' c : k <= k' -> usable allowed n k c -> usable allowed n k' c.
Proof. intros L [A | B]; [now left | right; lia]. Qed.

Section Emitted.
Context {Δ : Domain} {V : Type}.
Variables (sem : op -> list V -> V) (den : nat -> V) (θ : env nat).
Variables (allowed : nat -> bool) (n : nat).

(** The new nodes of [g] denote by [sem], and the allowed ones what they denoted before. *)
Definition new_values (g : dag) (den' : nat -> V) : Prop :=
  (forall k f cs, n <= k -> nth_error g k = Some (f, cs) -> den' k = sem f (map den' cs)) /\
  (forall k, allowed k = true -> den' k = den k).

(** The graph [g'] with the roots [js], built from [g] for templates that denote [vs]. *)
Record emitted (g g' : dag) (js : list nat) (vs : option (list V)) : Prop := {
  emitted_extension : extension g g';
  emitted_new : new_nodes_ok allowed n g';
  emitted_roots : Forall (usable allowed n (length g')) js;
  emitted_values : forall den', new_values g' den' -> vs = Some (map den' js)
}.

Lemma new_values_below g g' den' : extension g g' -> new_values g' den' -> new_values g den'.
Proof. intros X [N A]. split; auto. intros k f cs L E. eauto using extension_node. Qed.

(** A template is emitted, from any graph whose new nodes are in order. *)
Definition emits (r : template) : Prop :=
  forall g g' j, n <= length g -> new_nodes_ok allowed n g -> emit allowed θ r g = Some (g', j) ->
  emitted g g' [j] (option_map (fun v => [v]) (template_den sem den θ r)).

Lemma emit_all_sound rs :
  Forall emits rs -> forall g g' js, n <= length g -> new_nodes_ok allowed n g ->
  emit_all (emit allowed θ) rs g = Some (g', js) ->
  emitted g g' js (sequence (map (template_den sem den θ) rs)).
Proof.
  induction 1 as [| r rs Hr _ IH]; intros g g' js L K E; simpl in E.
  - injection E as <- <-. split; auto using extension_refl.
  - destruct (emit allowed θ r g) as [[g1 j] |] eqn:E1; [| discriminate].
    destruct (emit_all (emit allowed θ) rs g1) as [[g2 js'] |] eqn:E2; [| discriminate].
    injection E as <- <-. destruct (Hr _ _ _ L K E1) as [X1 K1 U1 V1].
    pose proof (extension_length _ _ X1) as L1.
    destruct (IH g1 g2 js') as [X2 K2 U2 V2]; auto; [lia |].
    pose proof (extension_length _ _ X2) as L2. split; auto.
    + exact (extension_trans _ _ _ X1 X2).
    + inversion U1; subst. constructor; auto. eapply usable_le; eauto.
    + intros den' H. simpl. rewrite (V2 den' H).
      pose proof (V1 den' (new_values_below _ _ _ X2 H)) as Q.
      destruct (template_den sem den θ r); [| discriminate]. injection Q as ->. reflexivity.
Qed.

Lemma add_node_sound f rs g g' j :
  Forall emits rs -> n <= length g -> new_nodes_ok allowed n g ->
  add_node f (emit_all (emit allowed θ) rs g) = Some (g', j) ->
  emitted g g' [j]
    (option_map (fun v => [v])
       (option_map (sem f) (sequence (map (template_den sem den θ) rs)))).
Proof.
  intros HF L K E. destruct (emit_all _ rs g) as [[g1 js] |] eqn:E1; [| discriminate].
  injection E as <- <-. destruct (emit_all_sound rs HF g g1 js L K E1) as [X K1 U1 V1].
  pose proof (extension_length _ _ X) as L1. pose proof (extension_snoc g1 (f, js)) as X1.
  assert (New : nth_error (g1 ++ [(f, js)]) (length g1) = Some (f, js)).
  { now rewrite nth_error_app2, Nat.sub_diag. }
  split.
  - exact (extension_trans _ _ _ X X1).
  - intros k f' cs c Lk N I. destruct (Nat.lt_ge_cases k (length g1)) as [Lt | Ge].
    + rewrite nth_error_app1 in N by exact Lt. eapply K1; eauto.
    + rewrite nth_error_app2 in N by exact Ge.
      destruct (k - length g1) as [| [|]] eqn:Ek; try discriminate. injection N as <- <-.
      rewrite Forall_forall in U1. eapply usable_le; [| exact (U1 c I)]. lia.
  - constructor; [| constructor]. right. rewrite app_length. simpl. lia.
  - intros den' H. rewrite (V1 den' (new_values_below _ _ _ X1 H)). simpl. do 2 f_equal.
    symmetry. apply (proj1 H); auto. lia.
Qed.

Lemma emit_sound r : emits r.
Proof.
  induction r as [x | f rs IH | F rs IH] using template_ind'; intros g g' j L K E;
    cbn [emit] in E; cbn [template_den].
  - destruct (θ x) as [[i | | |] |]; try discriminate.
    destruct (allowed i) eqn:A; [| discriminate]. injection E as <- <-.
    split; auto using extension_refl.
    + constructor; [now left | constructor].
    + intros den' [_ H]. simpl. now rewrite H.
  - now apply (add_node_sound f rs).
  - destruct (θ F) as [[| f | |] |]; try discriminate. now apply (add_node_sound f rs).
Qed.
End Emitted.

(** Several templates, from any graph: its nodes are the old ones. *)
Theorem emitted_all {Δ : Domain} {V : Type} (sem : op -> list V -> V) den θ allowed rs g g' js :
  emit_all (emit allowed θ) rs g = Some (g', js) ->
  emitted sem den allowed (length g) g g' js (sequence (map (template_den sem den θ) rs)).
Proof.
  intros E. apply emit_all_sound; auto.
  - apply Forall_forall. intros r _. apply emit_sound.
  - intros k f cs c L N. apply nth_error_None in L. congruence.
Qed.

(** One template. *)
Corollary emitted_one {Δ : Domain} {V : Type} (sem : op -> list V -> V) den θ allowed r g g' j :
  emit allowed θ r g = Some (g', j) ->
  emitted sem den allowed (length g) g g' [j]
    (option_map (fun v => [v]) (template_den sem den θ r)).
Proof.
  intros E. apply emit_sound; auto. intros k f cs c L N. apply nth_error_None in L. congruence.
Qed.
