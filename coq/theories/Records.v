(** * Records

    A record is a tuple that begins with a constant, which holds the names of its fields.  So records
    are values of the calculus as it is, and an expression that makes one is a tuple.  Its fields are
    its attributes, in every interpretation that [with_fields] makes. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Kleene Values Terms Guards Patterns Declarative Simulation.

(** A domain with a constant for each list of names. *)
Class Fields (Δ : Domain) : Type := {
  tag : list attr -> const;
  untag : const -> option (list attr);
  untag_tag : forall αs, untag (tag αs) = Some αs
}.

Section Records.
Context {Δ : Domain} {F : Fields Δ}.

(** [record(α = e, ...)] *)
Definition record (αs : list attr) (es : list expr) : expr := ETuple (EConst (tag αs) :: es).

Section Values.
Context {T : Type}.

Definition record_value (αs : list attr) (vs : list (value T)) : value T :=
  VTuple (VConst (tag αs) :: vs).

(** The value at the place of the name. *)
Fixpoint field (α : attr) (αs : list attr) (vs : list (value T)) : option (value T) :=
  match αs, vs with
  | β :: αs, v :: vs => if Nat.eqb α β then Some v else field α αs vs
  | _, _ => None
  end.

(** The names and the values of a record; nothing for other values. *)
Definition fields (v : value T) : option (list attr * list (value T)) :=
  match v with
  | VTuple (VConst c :: vs) => option_map (fun αs => (αs, vs)) (untag c)
  | _ => None
  end.

(** An interpretation in which records have their fields, and other values what they had. *)
Definition with_fields (I : interpretation T) : interpretation T :=
  Interpretation
    (fun α v =>
       match fields v with
       | Some (αs, vs) => field α αs vs
       | None => attribute_in I α v
       end)
    (operation_in I).

Lemma fields_record αs vs : fields (record_value αs vs) = Some (αs, vs).
Proof. unfold fields, record_value. now rewrite untag_tag. Qed.

Lemma field_at αs : NoDup αs -> forall vs i α v,
  nth_error αs i = Some α -> nth_error vs i = Some v -> field α αs vs = Some v.
Proof.
  induction 1 as [| β αs N _ IH]; intros [| w vs] [| i] α v A V; simpl in *; try discriminate.
  - injection A as ->. injection V as ->. now rewrite Nat.eqb_refl.
  - destruct (Nat.eqb_spec α β) as [-> |]; [| eauto].
    exfalso. apply N. eapply nth_error_In; eauto.
Qed.

Lemma field_none α αs : ~ In α αs -> forall vs, field α αs vs = None.
Proof.
  induction αs as [| β αs IH]; intros N [| v vs]; simpl; auto.
  destruct (Nat.eqb_spec α β) as [-> |]; [exfalso; apply N; now left |].
  apply IH. intros I. apply N. now right.
Qed.

(** Records are equal if their names and values are. *)
Lemma record_value_inj αs vs βs ws :
  record_value αs vs = record_value βs ws -> αs = βs /\ vs = ws.
Proof.
  intros [= E ->]. split; auto.
  apply (f_equal untag) in E. rewrite !untag_tag in E. now injection E.
Qed.
End Values.

(** ** [x.α] is the expression of the field, if [x] is bound to the record *)

Section Meaning.
Context {T : Type} {Σ : Structure T}.

Lemma eval_record (θ : env T) αs es v :
  eval θ (record αs es) = Some v ->
  exists vs, v = record_value αs vs /\ sequence (map (eval θ) es) = Some vs.
Proof.
  simpl. destruct (sequence (map (eval θ) es)) as [vs |]; simpl; [| discriminate].
  intros [= <-]. now exists vs.
Qed.

Lemma sequence_nth {A E : Type} (f : E -> option A) es : forall vs i e,
  sequence (map f es) = Some vs -> nth_error es i = Some e -> f e = nth_error vs i.
Proof.
  induction es as [| e' es IH]; intros vs [| i] e S N; simpl in *; try discriminate.
  - injection N as ->. destruct (f e) as [v |]; [| discriminate].
    destruct (sequence (map f es)); simpl in S; [| discriminate]. now injection S as <-.
  - destruct (f e') as [v |]; [| discriminate].
    destruct (sequence (map f es)) as [vs' |]; simpl in S; [| discriminate].
    injection S as <-. simpl. eauto.
Qed.

(** Attributes are those of an interpretation with fields. *)
Variable I : interpretation T.
Hypothesis has_fields : meaning = with_fields I.

Lemma attribute_record α αs (vs : list (value T)) :
  attribute α (record_value αs vs) = field α αs vs.
Proof.
  unfold attribute. rewrite has_fields. cbn [with_fields attribute_in]. now rewrite fields_record.
Qed.

Theorem record_field (θ : env T) R p x αs es t i α e :
  NoDup αs -> R ⊢ PLet p x (record αs es) @ θ ≈ t ->
  nth_error αs i = Some α -> nth_error es i = Some e ->
  eval θ (EAttr x α) = eval θ e.
Proof.
  intros N M A E. inversion M as [| | | | | | | ? ? ? ? ? ? v _ V X | | |]; subst.
  destruct (eval_record _ _ _ _ V) as (vs & -> & S). simpl. rewrite X. simpl.
  rewrite attribute_record, (sequence_nth _ _ _ _ _ S E).
  destruct (nth_error vs i) as [w |] eqn:W; [now apply field_at with (i := i) |].
  rewrite <- (sequence_nth _ _ _ _ _ S E) in W.
  assert (D : exists w, eval θ e = Some w); [| destruct D; congruence].
  clear -S E. revert vs i S E. induction es as [| e' es IH]; intros vs [| i] S E; simpl in *; try discriminate.
  - injection E as ->. destruct (eval θ e); [eauto | discriminate].
  - destruct (eval θ e'); [| discriminate].
    destruct (sequence (map (eval θ) es)) as [vs' |]; [| discriminate]. eauto.
Qed.

Theorem record_other (θ : env T) R p x αs es t α :
  R ⊢ PLet p x (record αs es) @ θ ≈ t -> ~ In α αs -> eval θ (EAttr x α) = None.
Proof.
  intros M N. inversion M as [| | | | | | | ? ? ? ? ? ? v _ V X | | |]; subst.
  destruct (eval_record _ _ _ _ V) as (vs & -> & _). simpl. rewrite X. simpl.
  rewrite attribute_record. now apply field_none.
Qed.
End Meaning.

(** ** Graphs: fields of related records are related, so that T6 holds with records *)

Section Graphs.
Context {T U : Type} (r : T -> U -> Prop).

Lemma field_rel α αs vs ws :
  Forall2 (value_rel r) vs ws -> option_rel (value_rel r) (field α αs vs) (field α αs ws).
Proof.
  intros H. revert αs. induction H as [| v w vs ws Hv _ IH]; intros [| β αs]; simpl; auto.
  destruct (Nat.eqb α β); simpl; auto.
Qed.

Lemma with_fields_agree I J :
  interpretations_agree r I J -> interpretations_agree r (with_fields I) (with_fields J).
Proof.
  intros [A O]. split; [| exact O]. intros α v w H. cbn [with_fields attribute_in].
  destruct H as [t u H | f | c | vs ws H]; simpl;
    try (apply A; constructor; assumption).
  destruct H as [| v w vs ws Hv H]; [apply A; constructor; constructor |].
  destruct Hv as [t u Ht | f | c | vs' ws' H'];
    try (apply A; repeat (constructor; auto)).
  destruct (untag c) as [αs |]; simpl; [now apply field_rel | apply A; repeat (constructor; auto)].
Qed.
End Graphs.
End Records.
